// redline import.
#include "base/error.h"
#include "cli/arguments.h"
#include "cli/transfer.h"
#include "infer/hf_folders.h"

namespace redline::cli {

int run_import(const Words& words) {
  Arguments arguments("import", "make a checkpoint of a Hugging Face folder", "HF_DIR --out CHECKPOINT [--json]",
                      {"redline import Qwen3-0.6B --out checkpoints/qwen3",
                       "redline train my.toml model.init_from=checkpoints/qwen3    train on from it",
                       "redline sample --checkpoint checkpoints/qwen3 --prompt Once"});
  std::vector<std::string> folders;
  std::string out;
  bool json = false;
  arguments.words("HF_DIR", folders, "config.json, and model.safetensors or its index and shards");
  arguments.text("--out", "CHECKPOINT", out, "the folder to make; a new or an empty one");
  arguments.flag("--json", json, "print one JSON document");
  if (!arguments.parse(words)) return kDone;
  if (folders.empty()) fail_user("redline import needs a folder: redline import HF_DIR --out CHECKPOINT");
  if (folders.size() > 1) fail_user("redline import takes one folder, not also '{}'", folders[1]);
  if (out.empty()) fail_user("redline import needs --out CHECKPOINT");

  infer::WriteWeights options;
  return Transfer("importing", options).run(folders[0], out, json, [&](const infer::Checkpoint& from) {
    return infer::import_model(real_files(), from, out, options);
  });
}

}  // namespace redline::cli
