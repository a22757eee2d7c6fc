// redline export and redline import: weights on their way from one folder to another.
#include <functional>

#include "base/clock.h"
#include "base/error.h"
#include "base/words.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "infer/hf_folders.h"
#include "io/json.h"
#include "model/family.h"
#include "report/figures.h"
#include "report/live_line.h"
#include "train/signals.h"

namespace redline::cli {
namespace {

// What export and import share: a progress line while weights are written, signals that stop them, and the report at
// the end.
class Transfer {
 public:
  Transfer(std::string doing, infer::WriteWeights& options) : line_(std::move(doing), 0) {
    options.stop = &signals_.caught();
    options.progress = line_.progress();
  }

  // Opens the model that `checkpoint` names, lets `move` write it into `out`, and reports it. Returns the exit status.
  int run(const std::string& checkpoint, const std::string& out, bool json,
          const std::function<infer::Transferred(const infer::Checkpoint&)>& move, bool average = false) {
    const auto use = [&](const infer::Checkpoint& from) {
      infer::Transferred transferred;
      try {
        transferred = move(from);
      } catch (...) {
        line_.line.clear();  // before something is said about it
        throw;
      }
      line_.line.clear();
      print_summary(from, out, transferred, json);
    };
    try {
      infer::use_checkpoint(real_files(), checkpoint, use, average);
      return kDone;
    } catch (const infer::Stopped&) {
      line_.line.keep("stopped; nothing is left of " + out);
      return kStopped;
    }
  }

 private:
  void print_summary(const infer::Checkpoint& from, const std::string& out, const infer::Transferred& transferred,
                     bool json) const {
    const double seconds = steady_seconds() - start_;
    const infer::WrittenWeights& w = transferred.weights;
    if (json) {
      print_json({{"from", from.folder.string()},
                  {"folder", out},
                  {"family", from.model.family},
                  {"parameters", w.parameters},
                  {"bytes", w.bytes},
                  {"shards", w.shards},
                  {"average", from.average},
                  {"tokenizer_files", transferred.tokenizer_files},
                  {"copied", transferred.copied},
                  {"note", transferred.note},
                  {"seconds", seconds}});
      return;
    }
    print(fmt::format("{}: {} with {} parameters, {} in {}, from {}{} in {}\n", out, from.model.family,
                      report::grouped(w.parameters), report::bytes(static_cast<double>(w.bytes)),
                      counted(w.shards, "file"), from.average ? "the average in " : "", from.folder.string(),
                      report::duration(seconds)));
    if (!transferred.tokenizer_files.empty())
      print(fmt::format("  tokenizer: {}\n", fmt::join(transferred.tokenizer_files, ", ")));
    if (!transferred.copied.empty())
      print(fmt::format("  copied as they are: {}\n", fmt::join(transferred.copied, ", ")));
    if (!transferred.note.empty()) print(fmt::format("  {}\n", transferred.note));
  }

  report::BytesLine line_;
  double start_ = steady_seconds();
  train::StopSignals signals_;
};

constexpr const char* kNothingLeft = "stopped by a signal: nothing is left of the folder";

DType dtype_of(const std::string& name) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32})
    if (name == redline::name_of(dtype)) return dtype;
  fail_machine("no dtype is named {}", name);
}

}  // namespace

int run_export(const Words& words) {
  Arguments arguments("export", "write a Hugging Face folder that transformers loads",
                      "MODEL --out HF_DIR [--average] [--dtype bf16|f16|f32] [--json]",
                      {"redline export runs/a --out my-model",
                       "redline export runs/a/checkpoints/step_00001000 --out my-model --dtype bf16"});
  ModelWords model;
  std::string out, tokenizer, dtype = "f32";
  infer::WriteWeights options;
  bool average = false, json = false;
  model.declare(arguments);
  arguments.text("--out", "HF_DIR", out, "the folder to make; a new or an empty one");
  arguments.choice("--dtype", "T", dtype, {"bf16", "f16", "f32"},
                   "f32: the weights as they are trained; bf16 or f16: half the size (default: f32)");
  arguments.integer("--shard-size", "BYTES", options.shard_bytes, 1, std::int64_t{1} << 60,
                    "most bytes of tensors in a file; above it there are several and an index (default: 5000000000)");
  arguments.text("--tokenizer", "NAME", tokenizer,
                 "for a model that brings none: a tokenizer.json, a sentencepiece .model, a folder with one, bytes or "
                 "ping (default: the model's own)");
  arguments.average(average);
  arguments.json(json);
  arguments.exits(kStopped, kNothingLeft);
  if (!arguments.parse(words)) return kDone;
  const std::string checkpoint = model.model("export", "the folder to make is given with --out");
  if (out.empty()) fail_user("redline export needs --out HF_DIR");
  options.dtype = dtype_of(dtype);

  return Transfer("exporting", options)
      .run(
          checkpoint, out, json,
          [&](const infer::Checkpoint& from) {
            return infer::export_model(real_files(), from, out, options, tokenizer);
          },
          average);
}

// The families that can be read, and what each can do. What was run where: docs/hugging_face.md.
int list_families(bool json) {
  constexpr const char* kHeldAgainst = "transformers 5.22";
  const auto biases = [](const model::DecoderDescription& d) {
    if (d.qkv_bias) return "q, k, v";
    return d.mlp_bias ? "attention, mlp" : d.attention_bias ? "attention" : "no";
  };
  io::Json rows = io::Json::array();
  for (const model::Family* f : model::families()) {
    rows.push_back({{"family", f->name},
                    {"architecture", f->hf_architecture},
                    {"model_type", f->hf_model_type},
                    {"train", true},
                    {"fp8", "all"},
                    {"windows", f->decoder.windows != model::WindowedLayers::none},
                    {"biases", biases(f->decoder)},
                    {"ranks", true},
                    {"held_against", kHeldAgainst}});
  }
  if (json) {
    print_json(rows);
    return kDone;
  }
  const auto line = [](const auto&... cells) {
    print(fmt::format("{:<9} {:<21} {:<5} {:<4} {:<7} {:<14} {:<5} {}\n", cells...));
  };
  const auto word = [](const io::Json& cell) {
    return cell.is_boolean() ? std::string(cell.get<bool>() ? "yes" : "no") : cell.get<std::string>();
  };
  line("family", "architecture", "train", "fp8", "windows", "biases", "ranks", "held against");
  for (const io::Json& row : rows)
    line(word(row["family"]), word(row["architecture"]), word(row["train"]), word(row["fp8"]), word(row["windows"]),
         word(row["biases"]), word(row["ranks"]), word(row["held_against"]));
  print("Each is imported, exported, verified and sampled as well; docs/hugging_face.md says what was run on cards.\n");
  return kDone;
}

int run_import(const Words& words) {
  Arguments arguments(
      "import", "make a checkpoint of a Hugging Face folder", "HF_DIR --out CHECKPOINT [--json] | --list [--json]",
      {"redline import Qwen3-0.6B --out checkpoints/qwen3", "redline import --list    the families that can be read",
       "redline train my.toml model.init_from=checkpoints/qwen3    train on from it",
       "redline sample checkpoints/qwen3 --prompt Once"});
  std::vector<std::string> folders;
  std::string out;
  bool json = false, list = false;
  arguments.words("HF_DIR", folders, "config.json, and model.safetensors or its index and shards");
  arguments.text("--out", "CHECKPOINT", out, "the folder to make; a new or an empty one");
  arguments.flag("--list", list, "print the families that can be read, and what each can do, and end");
  arguments.json(json);
  arguments.exits(kStopped, kNothingLeft);
  if (!arguments.parse(words)) return kDone;
  if (list && (!folders.empty() || !out.empty())) fail_user("redline import --list takes no folder");
  if (list) return list_families(json);
  if (folders.empty()) fail_user("redline import needs a folder: redline import HF_DIR --out CHECKPOINT");
  if (folders.size() > 1) fail_user("redline import takes one folder, not also '{}'", folders[1]);
  if (out.empty()) fail_user("redline import needs --out CHECKPOINT");

  infer::WriteWeights options;
  return Transfer("importing", options).run(folders[0], out, json, [&](const infer::Checkpoint& from) {
    return infer::import_model(real_files(), from, out, options);
  });
}

}  // namespace redline::cli
