// From a configuration and a kind of device to how a model is lowered.
#include <algorithm>
#include <limits>

#include "device/card_overhead.h"
#include "model/lowering.h"

namespace redline::model {
namespace {

// Rows of logits that exist at a time: enough that their products fill the device, and on a card at least so many elements,
// since a chunk of a small vocabulary is over before the next is launched. Every chunk adds to the gradient of the whole
// head: with 8192 rows instead of 16384 a step of qwen3-1.8b takes 0.8% longer.
constexpr std::int64_t kCpuLossChunk = 512, kCudaLossChunk = 16384, kCudaLossElements = 1 << 26;

// What the workspace holds that all kernels of a card share: the gradient of the embedding sorts the tokens there, 20 bytes
// each, and attention lists the tiles of documents, 32 bytes for each document that there is room for.
constexpr std::int64_t kMostCardTokens = std::int64_t{1} << 21, kMostCardDocuments = std::int64_t{1} << 20;
static_assert(20 * kMostCardTokens <= device::kCudaWorkspaceBytes * 3 / 4);
static_assert(32 * (kMostCardDocuments + kMostCardTokens / 64) <= device::kCudaWorkspaceBytes * 3 / 4);
constexpr std::int64_t kMostIndex = std::numeric_limits<std::int32_t>::max();  // of tokens and of documents

program::Recompute recompute_of(std::string_view name) {
  if (name == "mlp") return program::Recompute::mlp;
  return name == "block" ? program::Recompute::block : program::Recompute::none;
}

}  // namespace

data::BatchShape batch_shape(const config::Config& c) {
  return {c.train.batch_size, c.train.seq_len, c.data.max_segments};
}

std::int64_t most_rows(const config::Config& c, device::Kind kind) {
  const bool card = kind == device::Kind::cuda;
  return std::min((card ? kMostCardTokens : kMostIndex) / c.train.seq_len,
                  (card ? kMostCardDocuments : kMostIndex) / c.data.max_segments);
}

DecodeShape decode_shape(device::Kind kind, std::int64_t texts, std::int64_t prompt, std::int64_t tokens,
                         std::int64_t positions) {
  constexpr std::int64_t kPromptStep = 64;  // a card's products are tuned for each number of rows: few of them
  if (prompt + tokens <= positions)
    positions = prompt + tokens;
  else
    prompt = std::max(prompt, positions / 2);
  DecodeShape shape{.slots = std::min(texts, kMostSlots), .positions = positions, .prompt = prompt, .rows = kMostSlots};
  if (kind == device::Kind::cuda)
    shape.prompt = (prompt + kPromptStep - 1) / kPromptStep * kPromptStep;
  else
    shape.rows = shape.slots;
  return shape;
}

LoweringOptions lowering_options(const config::Config& c, device::Kind kind) {
  LoweringOptions o;
  o.batch = batch_shape(c);
  o.accumulate = c.train.accumulate > 1;
  o.loss_chunk =
      kind == device::Kind::cuda ? std::max(kCudaLossChunk, kCudaLossElements / c.model.vocab) : kCpuLossChunk;
  o.optim = c.optim;
  o.seed = static_cast<std::uint64_t>(c.train.seed);
  o.recompute = recompute_of(c.train.recompute);
  o.execution.graphs = c.kernels.graphs == "auto";
  o.execution.attention = c.kernels.attention;
  o.execution.deterministic = c.kernels.deterministic;
  if (c.train.sample_every > 0)
    o.decode = decode_shape(kind, std::max<std::int64_t>(static_cast<std::int64_t>(c.train.sample_prompts.size()), 1),
                            std::min(kSamplePromptTokens, c.train.seq_len), c.train.sample_tokens, c.train.seq_len);
  if (kind != device::Kind::cuda) return o;
  if (c.train.batch_size > most_rows(c, kind))
    fail_user(
        "{}a micro-batch of {} rows of {} tokens and data.max_segments = {} is more than a card's kernels take ({} "
        "tokens, "
        "{} documents); lower train.batch_size and raise train.accumulate",
        c.origins.prefix({"train.batch_size", "train.seq_len", "data.max_segments"}), c.train.batch_size,
        c.train.seq_len, c.data.max_segments, kMostCardTokens, kMostCardDocuments);
  if (c.kernels.deterministic && c.kernels.attention == "cudnn")
    fail_user(
        "{}kernels.deterministic does not go with kernels.attention = \"cudnn\", whose backward pass adds in the order "
        "in "
        "which blocks finish; use \"auto\", \"hopper\" or \"flash\"",
        c.origins.prefix({"kernels.deterministic", "kernels.attention"}));
  const std::string& matmul = c.precision.matmul;
  if (matmul == "bf16") {
    o.compute = DType::bf16;
    const std::string& attention = c.kernels.attention;
    o.attention_workspace = (attention == "auto" || attention == "cudnn") && !c.kernels.deterministic;
  } else if (matmul == "tf32") {
    o.execution.tf32 = true;
  } else if (matmul != "fp32") {
    fail_user("precision.matmul = \"{}\" does not run on a GPU yet; use bf16, tf32 or fp32", matmul);
  }
  return o;
}

}  // namespace redline::model
