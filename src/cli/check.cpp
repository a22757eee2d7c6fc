// redline info and redline check: what this machine has, and whether it works.
//
// A check runs commands of this program on a case and a model that are compiled in, each as a process of its own: one
// that crashes or hangs is a row of the table, and not the end of the check.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/clock.h"
#include "base/error.h"
#include "base/left_out.h"
#include "base/words.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/processes.h"
#include "config/load.h"
#include "data/input/parquet.h"
#include "device/device.h"
#include "dist/group.h"
#include "dist/place.h"
#include "dist/token.h"
#include "infer/verify.h"
#include "io/json.h"
#include "model/family.h"
#include "perf/cards.h"
#include "perf/peak.h"
#include "report/figures.h"
#include "report/live_line.h"
#include "train/signals.h"

namespace redline::cli {
namespace {

io::Json cuda_json(const device::CudaStatus& cuda, const perf::CardLibraries& libraries) {
  io::Json cards = io::Json::array();
  for (const device::CudaCard& c : cuda.cards)
    cards.push_back({{"name", c.name},
                     {"compute_capability", fmt::format("{}.{}", c.major, c.minor)},
                     {"fp8", device::has_fp8(c.major, c.minor)},
                     {"multiprocessors", c.multiprocessors},
                     {"memory_bytes", c.memory_bytes}});
  return {{"built", cuda.built},
          {"usable", cuda.problem.empty()},
          {"problem", cuda.problem},
          {"runtime_version", cuda.runtime_version},
          {"driver_version", cuda.driver_version},
          {"cublaslt_version", libraries.cublaslt},
          {"cublaslt_problem", libraries.cublaslt_problem},
          {"cudnn_version", libraries.cudnn},
          {"cudnn_problem", libraries.cudnn_problem},
          {"cards", std::move(cards)}};
}

std::string cuda_lines(const device::CudaStatus& cuda, const perf::CardLibraries& libraries) {
  std::string out = fmt::format("cuda      {}, {}\n", cuda.built ? "built" : "not built",
                                cuda.problem.empty() ? "usable" : "not usable: " + cuda.problem);
  if (!cuda.runtime_version.empty() || !cuda.driver_version.empty())
    out +=
        fmt::format("          runtime {}, driver {}\n", cuda.runtime_version.empty() ? "none" : cuda.runtime_version,
                    cuda.driver_version.empty() ? "none" : cuda.driver_version);
  if (cuda.built)
    out += fmt::format("          products by {}, attention by {}\n",
                       libraries.cublaslt.empty() ? "nothing (no cuBLASLt: " + libraries.cublaslt_problem + ")"
                                                  : "cuBLASLt " + libraries.cublaslt,
                       libraries.cudnn.empty() ? "its own kernels (no cuDNN: " + libraries.cudnn_problem + ")"
                                               : "cuDNN " + libraries.cudnn + " or its own kernels");
  for (const device::CudaCard& c : cuda.cards)
    out += fmt::format("          {}, compute capability {}.{} ({}), {} multiprocessors, {}\n", c.name, c.major,
                       c.minor, device::has_fp8(c.major, c.minor) ? "with fp8" : "without fp8", c.multiprocessors,
                       report::bytes(static_cast<double>(c.memory_bytes)));
  return out;
}

// One line: what moves tensors between ranks there.
std::string engine_line(std::string_view name, std::string_view where, const dist::EngineStatus& engine) {
  return fmt::format("{:<10}{}, {}: ranks on {}{}{}\n", name, engine.built ? "built" : "not built",
                     engine.problem.empty() ? "usable" : "not usable", where,
                     engine.name.empty() ? "" : " by " + engine.name,
                     engine.problem.empty() ? "" : "; " + engine.problem);
}
io::Json engine_json(const dist::EngineStatus& engine) {
  return {{"built", engine.built},
          {"usable", engine.problem.empty()},
          {"problem", engine.problem},
          {"version", engine.name}};
}

// What is built in, found and usable.
struct Machine {
  device::CpuDevice cpu;
  perf::BlasLibrary blas = perf::blas_library();
  device::CudaStatus cuda = device::cuda_status();
  perf::CardLibraries libraries = perf::card_libraries();
  dist::EngineStatus mpi = dist::mpi_status(), nccl = dist::nccl_status();
  const data::ParquetLibrary& parquet = data::parquet_library();

  Machine() {
    if (nccl.built && nccl.problem.empty()) nccl.problem = cuda.problem;  // it connects cards
  }
};

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const model::Family* f : model::families()) names.emplace_back(f->name);
  return names;
}

io::Json machine_json(Machine& m) {
  io::Json missing = io::Json::array();
  for (const LeftOut& part : left_out())
    missing.push_back({{"what", part.what}, {"why", part.why}, {"cost", part.cost}});
  return {{"version", version()},
          {"families", family_names()},
          {"cpu",
           {{"built", true},
            {"usable", true},
            {"name", m.cpu.name()},
            {"threads", m.cpu.pool().threads()},
            {"memory_bytes", m.cpu.memory_bytes()},
            {"precision", "fp32"},
            {"blas", m.blas.version},
            {"blas_core", m.blas.core}}},
          {"cuda", cuda_json(m.cuda, m.libraries)},
          {"mpi", engine_json(m.mpi)},
          {"nccl", engine_json(m.nccl)},
          {"parquet",
           {{"usable", m.parquet.problem.empty()},
            {"problem", m.parquet.problem},
            {"arrow_version", m.parquet.functions ? m.parquet.functions->arrow : ""}}},
          {"left_out", std::move(missing)}};
}

std::string machine_lines(Machine& m) {
  std::string out = fmt::format("redline   {}\n", version());
  out += fmt::format("cpu       built, usable: {}, {}, fp32\n", m.cpu.name(),
                     report::bytes(static_cast<double>(m.cpu.memory_bytes())));
  out += fmt::format("          products by {} (kernels for {})\n", m.blas.version, m.blas.core);
  out += cuda_lines(m.cuda, m.libraries);
  out += engine_line("mpi", "CPUs of several machines", m.mpi);
  out += engine_line("nccl", "cards", m.nccl);
  out += m.parquet.functions ? fmt::format("parquet   usable: read by Arrow {}\n", m.parquet.functions->arrow)
                             : fmt::format("parquet   not usable: {}\n", m.parquet.problem);
  out += fmt::format("models    {}\n", fmt::join(family_names(), ", "));
  for (const LeftOut& part : left_out()) out += fmt::format("left out  {}: {}; {}\n", part.what, part.why, part.cost);
  return out;
}

enum class State { works, slow, missing, failed };
constexpr std::string_view name_of(State s) {
  constexpr std::string_view kNames[] = {"works", "slow", "missing", "failed"};
  return kNames[static_cast<int>(s)];
}

struct Row {
  std::string part;
  State state = State::works;
  std::string found;   // a sentence's part: what was seen
  std::string remedy;  // how to get it, or what to do; empty where it works
  double seconds = 0;
};

// A folder of the check's own, gone with it.
class Scratch {
 public:
  Scratch() {
    std::error_code error;
    const Path parent = std::filesystem::temp_directory_path(error);
    if (error) fail_user("the folder for temporary files, /tmp or that of TMPDIR: {}", error.message());
    std::string name = (std::filesystem::absolute(parent) / "redline-check-XXXXXX").string();
    if (!::mkdtemp(name.data()))
      fail_machine("{}: {}; name another folder in TMPDIR", parent.string(), std::strerror(errno));
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;  // another row of the table says that the disk fails
    std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const Path& path() const { return path_; }

 private:
  Path path_;
};

struct Stopped {};  // a signal came

bool is_of_full_disk(const std::string& sentence) {
  return sentence.find(std::strerror(ENOSPC)) != sentence.npos || sentence.find(std::strerror(EDQUOT)) != sentence.npos;
}
std::string make_room(const Path& folder) {
  return fmt::format("make room in {}, or name another folder in TMPDIR", folder.string());
}

// The end of a command.
struct Ended {
  int status = 0;
  std::string document;  // what it printed
  std::string sentence;  // its error, or how it ended; empty where it is done
  double seconds = 0;
};

// The rows, one after another.
class Check {
 public:
  explicit Check(Machine& machine) : machine_(machine) {
    const Path of_case = folder() / "case";
    try {
      real_files().create_folders(of_case);
      for (const config::EmbeddedFile& file : infer::check_case())
        real_files().replace(of_case / fmt::format("{}.{}", file.name, file.name == "config" ? "json" : "safetensors"),
                             file.text);
    } catch (const MachineError& e) {
      fail_machine("{}; {}", e.what(), make_room(folder().parent_path()));
    }
  }

  void device(const std::string& name) {
    on_oracle(name);
    if (trains(name)) resumes(name);
    std::error_code ignored;
    std::filesystem::remove_all(run_of(name), ignored);  // what follows needs its room
    rates(name);
  }

  void no_cards() {
    const bool built = machine_.cuda.built;
    add({.part = "cuda",
         .state = State::missing,
         .found = machine_.cuda.problem,
         .remedy = built ? "a card of compute capability 8.0 or more and its driver; redline has the rest"
                         : "a redline that was built where nvcc is found",
         .seconds = 0});
  }

  void libraries() {
    if (machine_.cuda.built) {
      library("cuBLASLt", machine_.libraries.cublaslt, machine_.libraries.cublaslt_problem, "nvidia-cublas");
      library("cuDNN", machine_.libraries.cudnn, machine_.libraries.cudnn_problem, "nvidia-cudnn-cu13");
    }
    const data::ParquetLibrary& parquet = machine_.parquet;
    add({.part = "parquet",
         .state = parquet.functions ? State::works : State::missing,
         .found = parquet.functions ? fmt::format("Arrow {}", parquet.functions->arrow) : parquet.problem,
         .remedy = parquet.functions ? "" : "a redline that was built where Arrow's C++ library or pyarrow is found",
         .seconds = 0});
  }

  void ranks() {
    if (may_be_tried("ranks on CPUs", "cpu")) together("ranks on CPUs", launch("cpu", {}));
    if (!machine_.mpi.built) {
      add({.part = "mpi",
           .state = State::missing,
           .found = machine_.mpi.problem,
           .remedy =
               "ranks of several machines talk over TCP without it; else a redline that was built where MPI is found",
           .seconds = 0});
    } else if (may_be_tried("mpi", "cpu")) {
      over_mpi();
    }
    if (!machine_.nccl.problem.empty()) {
      add({.part = "nccl",
           .state = State::missing,
           .found = machine_.nccl.problem,
           .remedy = !machine_.nccl.built ? "a redline that was built where nccl.h is found"
                     : machine_.cuda.problem.empty()
                         ? "pip install nvidia-nccl-cu13 beside redline, or the system's NCCL"
                         : "a card: NCCL connects cards",
           .seconds = 0});
    } else if (may_be_tried("nccl", "cuda")) {
      const bool share = machine_.cuda.cards.size() < 2;
      together("nccl", launch("cuda", share ? Words{"--share-card"} : Words{}));
    }
  }

  const std::vector<Row>& rows() const { return rows_; }
  const io::Json& peaks() const { return peaks_; }

 private:
  // A model that trains in moments, with heads that every attention on cards is built for.
  inline static const Words kTiny = {
      "model.layers=2",     "model.hidden=128", "model.heads=2",      "model.head_dim=64",          "model.ffn=256",
      "train.batch_size=2", "train.seq_len=64", "train.eval_every=0", "kernels.deterministic=true", "log.sinks=[]"};
  static constexpr int kSteps = 8, kSaved = 4, kStepsTogether = 2;

  const Path& folder() const { return scratch_.path(); }
  Row& add(Row row) { return rows_.emplace_back(std::move(row)); }

  // Every command here takes a few seconds. Ranks that cannot find each other would wait for minutes.
  static constexpr double kLongest = 120, kLongestOfRanks = 30;

  // The last error in a log; empty: there is none.
  static std::string last_error(const std::string& log) {
    constexpr std::string_view kError = "redline: error: ";
    const std::size_t at = log.rfind(kError);
    if (at == log.npos) return {};
    const std::string sentence = log.substr(at + kError.size());
    return sentence.substr(0, sentence.find('\n'));
  }

  // Runs redline, or `before` and then redline.
  Ended command(const std::string& doing, Words words, const Words& before = {}, bool tuned = false,
                double longest = kLongest) {
    if (signals_.caught() != 0) throw Stopped{};
    progress_.show("checking: " + doing);
    const Path out = folder() / "out", log = folder() / "log";
    for (const Path& file : {out, log}) std::filesystem::remove(file);
    ProcessToStart process;
    process.program = before.empty() ? own_path() : before[0];
    if (!before.empty()) {
      words.insert(words.begin(), own_path());
      words.insert(words.begin(), before.begin() + 1, before.end());
    }
    process.words = std::move(words);
    process.name = doing;
    process.out = out.string();
    process.log = log.string();
    // Root may use MPI here, and more ranks than cores; mpirun leaves a folder among the temporary files.
    process.environment = {{"TMPDIR", folder().string()},
                           {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                           {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                           {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                           {"OMPI_MCA_hwloc_base_binding_policy", "none"}};
    if (!tuned) process.environment.emplace_back("REDLINE_TUNING", "off");
    // A check in a job, or in a shell of one, is about this machine alone.
    for (char** v = environ; *v; ++v) {
      const std::string name = std::string(*v).substr(0, std::string_view(*v).find('='));
      if (dist::is_of_launcher(name)) process.environment.emplace_back(name, "");
    }
    const double began = steady_seconds();
    bool late = false;
    const ProcessesEnd end = run_processes({process}, {}, [&](bool) {
      late = steady_seconds() - began > longest;
      return late ? SIGKILL : 0;
    });
    if (end.asked_to) throw Stopped{};
    Ended ended{
        .status = end.status, .document = real_files().read(out), .sentence = "", .seconds = steady_seconds() - began};
    const std::string error = late || end.status != kDone ? last_error(real_files().read(log)) : "";
    if (late)
      ended.sentence = fmt::format("did not end within {:.0f} s{}{}", longest, error.empty() ? "" : ": ", error);
    else if (end.status != kDone)
      ended.sentence = error.empty() ? end.how : error;
    return ended;
  }

  Row failed(const std::string& part, const Ended& ended, const std::string& remedy) const {
    return {.part = part,
            .state = State::failed,
            .found = ended.sentence,
            .remedy = is_of_full_disk(ended.sentence) ? make_room(folder().parent_path()) : remedy,
            .seconds = ended.seconds};
  }
  static constexpr const char* kWrong = "nothing that is trained here can be trusted: see docs/monitoring.md";

  void on_oracle(const std::string& device) {
    const std::string part = device + ": oracle";
    const Ended ended = command(part, {"verify", (folder() / "case").string(), "--device", device, "--json"});
    const io::Json document = io::Json::parse(ended.document, nullptr, false);
    if (document.is_discarded()) {
      add(failed(part, ended, kWrong));
      return;
    }
    const io::Json& worst = document.at("tensors").at(0);
    const bool within = document.at("within").get<bool>();
    // The error of a NaN is null.
    const double share = worst.at("error").is_number()
                             ? worst.at("error").get<double>() / worst.at("tolerance").get<double>()
                             : INFINITY;
    add({.part = part,
         .state = within ? State::works : State::failed,
         .found = fmt::format("{} tensors of a step and {} as Hugging Face computes them; {} has {} of its tolerance",
                              document.at("tensors").size(),
                              counted(document.at("train_steps").get<std::int64_t>(), "training step"),
                              worst.at("name").get<std::string>(), report::percent(share)),
         .remedy = within ? "" : kWrong,
         .seconds = ended.seconds});
  }

  Path run_of(const std::string& device) const { return folder() / device; }

  bool trains(const std::string& device) {
    const std::string part = device + ": training";
    Words words = {"train", "quick", "--device", device, "--out", run_of(device).string()};
    words.insert(words.end(), kTiny.begin(), kTiny.end());
    words.push_back(fmt::format("train.max_steps={}", kSteps));
    words.push_back(fmt::format("checkpoint.every={}", kSaved));
    const Ended ended = command(part, words);
    if (ended.status != kDone) {
      add(failed(part, ended, kWrong));
      untrained_.insert(device);
      return false;
    }
    add({.part = part,
         .state = State::works,
         .found = fmt::format("{} of a small model, {} saved", counted(kSteps, "step"),
                              counted(kSteps / kSaved, "checkpoint")),
         .remedy = "",
         .seconds = ended.seconds});
    return true;
  }

  // From the middle of the run on again: its last checkpoint must have the same bytes.
  void resumes(const std::string& device) {
    const std::string part = device + ": resume";
    const Path last = run_of(device) / "checkpoints" / fmt::format("step_{:08}", kSteps);
    constexpr const char* kFiles[] = {"model.safetensors", "optimizer.safetensors"};
    std::vector<std::string> before, differ;
    for (const char* name : kFiles) before.push_back(real_files().read(last / name));
    const Ended ended = command(part, {"train", "--resume", "--from-step", std::to_string(kSaved), "--device", device,
                                       "--out", run_of(device).string()});
    if (ended.status != kDone) {
      add(failed(part, ended, "checkpoints cannot be relied on here: see docs/monitoring.md"));
      return;
    }
    for (std::size_t i = 0; i < before.size(); ++i)
      if (real_files().read(last / kFiles[i]) != before[i]) differ.emplace_back(kFiles[i]);
    add({.part = part,
         .state = differ.empty() ? State::works : State::failed,
         .found = differ.empty() ? fmt::format("from step {} on again, the same bits at step {}", kSaved, kSteps)
                                 : fmt::format("from step {} on again, and {} differs at step {}", kSaved,
                                               fmt::join(differ, " and "), kSteps),
         .remedy = differ.empty() ? "" : "memory or processor may be faulty; try again, then with another device",
         .seconds = ended.seconds});
  }

  // The limits are chosen, not measured: shares of a card's datasheet, and of a CPU, whose datasheet is not known, far
  // less than the 6 GFLOP/s a thread and 50 GB/s that two Neoverse-V1 cores had left at a load of 26.
  void rates(const std::string& device) {
    constexpr double kOfProducts = 0.5, kOfCopies = 0.6, kFlopsOfThread = 2e9, kCopiesOfCpu = 1e9;
    const std::string part = device + ": rates";
    const Ended ended = command(part, {"peaks", "--device", device, "--json"}, {}, true);
    const io::Json document = io::Json::parse(ended.document, nullptr, false);
    if (ended.status != kDone || document.is_discarded()) {
      add(failed(part, ended, "redline peaks alone may say more"));
      return;
    }
    const io::Json& reached = document.at("machine");
    const double products = reached.at("measured_flops").get<double>(),
                 copies = reached.at("copy_bytes_per_s").get<double>();
    const perf::Card* const card = device == "cuda" ? perf::find_card(reached.at("name").get<std::string>()) : nullptr;
    const double least_products =
                     card ? kOfProducts * 1e12 * card->tflops.bf16 : kFlopsOfThread * machine_.cpu.pool().threads(),
                 least_copies = card ? kOfCopies * 1e9 * card->gbytes : kCopiesOfCpu;
    const bool usual = products >= least_products && copies >= least_copies;
    add({.part = part,
         .state = usual ? State::works : State::slow,
         .found = fmt::format("products {} ({}), copies {:.1f} GB/s{}", report::flop_rate(products),
                              reached.at("measured_with").get<std::string>(), copies * 1e-9,
                              usual ? ""
                                    : fmt::format("; {} and {:.1f} GB/s are the least that is usual",
                                                  report::flop_rate(least_products), least_copies * 1e-9)),
         .remedy = usual ? "" : "other programs, a power limit or heat slow it down; docs/performance.md",
         .seconds = ended.seconds});
    peaks_[device] = reached;
  }

  void library(const std::string& name, const std::string& found, const std::string& problem,
               const std::string& package) {
    add({.part = name,
         .state = found.empty() ? State::missing : State::works,
         .found = found.empty() ? problem : "version " + found,
         .remedy = found.empty() ? fmt::format("pip install {} beside redline, or CUDA's own packages", package) : "",
         .seconds = 0});
  }

  // What two ranks run; each call has a folder of its own.
  Words together_words(const std::string& device) {
    Words words = {"train", "quick", "--device",
                   device,  "--out", (folder() / fmt::format("ranks-{}", ++runs_)).string()};
    words.insert(words.end(), kTiny.begin(), kTiny.end());
    words.push_back(fmt::format("train.max_steps={}", kStepsTogether));
    return words;
  }
  // Several ranks do not what one cannot.
  bool may_be_tried(const std::string& part, const std::string& device) {
    if (!untrained_.contains(device)) return true;
    add({.part = part,
         .state = State::missing,
         .found = fmt::format("not tried, since {}: training failed", device),
         .remedy = fmt::format("that of {}: training", device),
         .seconds = 0});
    return false;
  }
  Ended launch(const std::string& device, const Words& flags) {
    Words words = {"launch", "-n", "2"};
    words.insert(words.end(), flags.begin(), flags.end());
    words.emplace_back("--");
    const Words train = together_words(device);
    words.insert(words.end(), train.begin(), train.end());
    return command(fmt::format("two ranks, {}", device), words, {}, false, kLongestOfRanks);
  }
  void together(const std::string& part, const Ended& ended) {
    if (ended.status != kDone)
      add(failed(part, ended, "docs/ranks.md"));
    else
      add({.part = part,
           .state = State::works,
           .found = fmt::format("two ranks made {} together", counted(kStepsTogether, "step")),
           .remedy = "",
           .seconds = ended.seconds});
  }

  // Ranks of one machine share memory. These are told that each is alone on its machine, so that MPI carries tensors.
  void over_mpi() {
    const char* const path = std::getenv("PATH");
    bool there = false;
    for (std::string_view rest = path ? path : ""; !rest.empty() && !there;) {
      const std::size_t colon = std::min(rest.find(':'), rest.size());
      there = ::access((Path(rest.substr(0, colon)) / "mpirun").c_str(), X_OK) == 0;
      rest.remove_prefix(std::min(colon + 1, rest.size()));
    }
    if (!there) {
      add({.part = "mpi",
           .state = State::missing,
           .found = fmt::format("{}, and no mpirun in PATH", machine_.mpi.name),
           .remedy = "apt-get install openmpi-bin",
           .seconds = 0});
      return;
    }
    together("mpi", command("two ranks over MPI", together_words("cpu"),
                            {"mpirun", "-n", "2", "env", "OMPI_COMM_WORLD_LOCAL_SIZE=1", "OMPI_COMM_WORLD_LOCAL_RANK=0",
                             "MASTER_ADDR=127.0.0.1", fmt::format("{}={}", dist::kTokenVariable, dist::new_token())},
                            false, kLongestOfRanks));
  }

  Machine& machine_;
  Scratch scratch_;
  train::StopSignals signals_;
  report::LiveLine progress_{stderr};
  std::vector<Row> rows_;
  std::set<std::string> untrained_;  // devices
  io::Json peaks_ = io::Json::object();
  int runs_ = 0;
};

std::int64_t count_of(const std::vector<Row>& rows, State state) {
  return std::ranges::count(rows, state, &Row::state);
}

std::string table(const std::vector<Row>& rows) {
  std::string out = fmt::format("{:<15} {:<8} {:>7}  {}\n", "part", "state", "seconds", "what was seen");
  for (const Row& row : rows)
    out += fmt::format("{:<15} {:<8} {:>7}  {}\n", row.part, name_of(row.state),
                       row.seconds > 0 ? fmt::format("{:.1f}", row.seconds) : "", row.found);
  return out;
}

std::string remedies(const std::vector<Row>& rows) {
  std::string out;
  for (const State state : {State::failed, State::slow, State::missing})
    for (const Row& row : rows)
      if (row.state == state) out += fmt::format("  {:<13} {}\n", row.part, row.remedy);
  return out.empty() ? out : "\nwhat would help\n" + out;
}

}  // namespace

int run_info(const Words& words) {
  Arguments arguments("info", "what this machine has, and which backends are built and usable", "[--json]",
                      {"redline info", "redline info --json"});
  bool json = false;
  arguments.json(json);
  if (!arguments.parse(words)) return kDone;
  Machine machine;
  json ? print_json(machine_json(machine)) : print(machine_lines(machine));
  return kDone;
}

int run_check(const Words& words) {
  Arguments arguments("check", "whether redline works on this machine: a self-test of a minute, without other files",
                      "[--device NAME] [--json]", {"redline check", "redline check --device cpu --json"});
  std::string device = "auto";
  bool json = false;
  arguments.choice("--device", "NAME", device, {"auto", "cpu", "cuda"},
                   "what to check: cpu, cuda, or auto: both, where there is a card (default: auto)");
  arguments.json(json);
  arguments.exits(kDone, "all that is there works; parts may be missing or slow");
  arguments.exits(kFailed, "a part that is there does not work, or the machine failed, which prints no table");
  arguments.exits(kStopped, "stopped by a signal: there is no result");
  if (!arguments.parse(words)) return kDone;

  Machine machine;
  if (device == "cuda" && !machine.cuda.problem.empty())
    fail_user("--device cuda: {}; use --device cpu", machine.cuda.problem);
  const double began = steady_seconds();
  std::vector<Row> rows;
  io::Json peaks;
  try {
    Check check(machine);
    if (device != "cuda") check.device("cpu");
    if (device != "cpu") machine.cuda.problem.empty() ? check.device("cuda") : check.no_cards();
    check.libraries();
    check.ranks();
    rows = check.rows();
    peaks = check.peaks();
  } catch (const Stopped&) {
    std::fputs("stopped; there is no result\n", stderr);  // as StopAtOnce says it
    return kStopped;
  }
  const bool works = count_of(rows, State::failed) == 0;
  const double seconds = steady_seconds() - began;
  if (json) {
    io::Json parts = io::Json::array();
    for (const Row& row : rows)
      parts.push_back({{"part", row.part},
                       {"state", name_of(row.state)},
                       {"found", row.found},
                       {"remedy", row.remedy},
                       {"seconds", row.seconds}});
    print_json({{"works", works},
                {"seconds", seconds},
                {"parts", std::move(parts)},
                {"info", machine_json(machine)},
                {"peaks", std::move(peaks)}});
  } else {
    print(machine_lines(machine) + "\n" + table(rows) + remedies(rows));
    print(fmt::format("\n{}: {} of {} work, {} slow, {} missing, {} failed, in {}\n",
                      works ? "redline works here" : "redline does NOT work here as it should",
                      count_of(rows, State::works), counted(std::ssize(rows), "part"), count_of(rows, State::slow),
                      count_of(rows, State::missing), count_of(rows, State::failed), report::duration(seconds)));
  }
  return works ? kDone : kFailed;
}

}  // namespace redline::cli
