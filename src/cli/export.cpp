// redline export.
#include "base/error.h"
#include "cli/arguments.h"
#include "cli/transfer.h"
#include "infer/hf_folders.h"

namespace redline::cli {
namespace {

DType dtype_of(const std::string& name) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32})
    if (name == redline::name_of(dtype)) return dtype;
  fail_machine("no dtype is named {}", name);
}

}  // namespace

int run_export(const Words& words) {
  Arguments arguments("export", "write a Hugging Face folder that transformers loads",
                      "--checkpoint DIR --out HF_DIR [--average] [--dtype bf16|f16|f32] [--json]",
                      {"redline export --checkpoint runs/a --out my-model",
                       "redline export --checkpoint runs/a/checkpoints/step_00001000 --out my-model --dtype bf16"});
  std::string checkpoint, out, tokenizer, dtype = "f32";
  infer::WriteWeights options;
  bool average = false, json = false;
  arguments.text("--checkpoint", "DIR", checkpoint, "a run (its newest checkpoint), a step, or a Hugging Face folder");
  arguments.text("--out", "HF_DIR", out, "the folder to make; a new or an empty one");
  arguments.choice("--dtype", "T", dtype, {"bf16", "f16", "f32"},
                   "f32: the weights as they are trained; bf16 or f16: half the size (default: f32)");
  arguments.integer("--shard-size", "BYTES", options.shard_bytes, 1, std::int64_t{1} << 60,
                    "most bytes of tensors in a file; above it there are several and an index (default: 5000000000)");
  arguments.text("--tokenizer", "NAME", tokenizer,
                 "for a model that brings none: a tokenizer.json, a sentencepiece .model, a folder with one, bytes or "
                 "ping (default: the model's own)");
  arguments.flag("--average", average,
                 "the average of the run's weights (train.average) instead of the weights themselves");
  arguments.flag("--json", json, "print one JSON document");
  if (!arguments.parse(words)) return kDone;
  if (checkpoint.empty()) fail_user("redline export needs --checkpoint DIR");
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

}  // namespace redline::cli
