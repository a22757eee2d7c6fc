// redline info.
#include "base/error.h"
#include "base/left_out.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "data/input/parquet.h"
#include "device/device.h"
#include "dist/group.h"
#include "io/json.h"
#include "model/family.h"
#include "perf/peak.h"
#include "report/figures.h"

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

}  // namespace

int run_info(const Words& words) {
  Arguments arguments("info", "what this machine has, and which backends are built and usable", "[--json]",
                      {"redline info", "redline info --json"});
  bool json = false;
  arguments.json(json);
  if (!arguments.parse(words)) return kDone;

  device::CpuDevice cpu;
  const perf::BlasLibrary blas = perf::blas_library();
  const device::CudaStatus cuda = device::cuda_status();
  dist::EngineStatus nccl = dist::nccl_status();
  if (nccl.built && nccl.problem.empty()) nccl.problem = cuda.problem;  // it connects cards
  const data::ParquetLibrary& parquet = data::parquet_library();
  std::vector<std::string> families;
  for (const model::Family* f : model::families()) families.emplace_back(f->name);
  if (json) {
    io::Json missing = io::Json::array();
    for (const LeftOut& part : left_out())
      missing.push_back({{"what", part.what}, {"why", part.why}, {"cost", part.cost}});
    print_json({{"version", version()},
                {"families", families},
                {"cpu",
                 {{"built", true},
                  {"usable", true},
                  {"name", cpu.name()},
                  {"threads", cpu.pool().threads()},
                  {"memory_bytes", cpu.memory_bytes()},
                  {"precision", "fp32"},
                  {"blas", blas.version},
                  {"blas_core", blas.core}}},
                {"cuda", cuda_json(cuda, perf::card_libraries())},
                {"mpi", engine_json(dist::mpi_status())},
                {"nccl", engine_json(nccl)},
                {"parquet",
                 {{"usable", parquet.problem.empty()},
                  {"problem", parquet.problem},
                  {"arrow_version", parquet.functions ? parquet.functions->arrow : ""}}},
                {"left_out", std::move(missing)}});
    return kDone;
  }
  print(fmt::format("redline   {}\n", version()));
  print(fmt::format("cpu       built, usable: {}, {}, fp32\n", cpu.name(),
                    report::bytes(static_cast<double>(cpu.memory_bytes()))));
  print(fmt::format("          products by {} (kernels for {})\n", blas.version, blas.core));
  print(cuda_lines(cuda, perf::card_libraries()));
  print(engine_line("mpi", "CPUs of several machines", dist::mpi_status()));
  print(engine_line("nccl", "cards", nccl));
  print(parquet.functions ? fmt::format("parquet   usable: read by Arrow {}\n", parquet.functions->arrow)
                          : fmt::format("parquet   not usable: {}\n", parquet.problem));
  print(fmt::format("models    {}\n", fmt::join(families, ", ")));
  for (const LeftOut& part : left_out()) print(fmt::format("left out  {}: {}; {}\n", part.what, part.why, part.cost));
  return kDone;
}

}  // namespace redline::cli
