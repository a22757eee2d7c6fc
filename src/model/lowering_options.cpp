// From a configuration and a kind of device to how a model is lowered.
#include <algorithm>
#include <limits>

#include "model/fp8_linears.h"
#include "model/lowering.h"

namespace redline::model {
namespace {

// Rows of logits that exist at a time: enough that their products fill the device, and on a card at least so many
// elements, since a chunk of a small vocabulary is over before the next is launched. Every chunk adds to the gradient
// of the whole head: with 8192 rows instead of 16384 a step of qwen3-1.8b takes 0.8% longer.
constexpr std::int64_t kCpuLossChunk = 512, kCudaLossChunk = 16384, kCudaLossElements = 1 << 26;

constexpr std::int64_t kMostIndex = std::numeric_limits<std::int32_t>::max();  // of tokens and of documents

// Products of a card, and those of eight bits anywhere, want rows in sixteens; the last chunk is what is left.
std::int64_t loss_chunk(const config::Config& c, device::Kind kind) {
  constexpr std::int64_t kRows = ops::kFp8Multiple;
  if (const std::int64_t rows = c.kernels.logits_rows; rows > 0) return (rows + kRows - 1) / kRows * kRows;
  return kind == device::Kind::cuda ? std::max(kCudaLossChunk, kCudaLossElements / c.model.vocab) : kCpuLossChunk;
}

program::Recompute recompute_of(std::string_view name) {
  if (name == "mlp") return program::Recompute::mlp;
  return name == "block" ? program::Recompute::block : program::Recompute::none;
}

}  // namespace

data::BatchShape batch_shape(const config::Config& c) {
  return {c.train.batch_size, c.train.seq_len, c.data.max_segments};
}

std::int64_t most_rows(const config::Config& c) {
  return std::min(kMostIndex / c.train.seq_len, kMostIndex / c.data.max_segments);
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
  o.loss_chunk = loss_chunk(c, kind);
  o.z_loss = c.train.z_loss;
  o.optim = c.optim;
  if (c.optim.name == "muon") o.optimizer = c.optim.muon_beta2 > 0 ? &kNorMuon : &kMuon;
  o.spike = c.guard.spike;
  o.average = c.train.average != "none";
  o.norms = c.log.norms_every > 0;
  o.seed = static_cast<std::uint64_t>(c.train.seed);
  o.recompute = recompute_of(c.train.recompute);
  o.execution.graphs = c.kernels.graphs == "auto";
  o.kind = kind;
  if (c.train.sample_every > 0)
    o.decode = decode_shape(kind, std::max<std::int64_t>(static_cast<std::int64_t>(c.train.sample_prompts.size()), 1),
                            std::min(kSamplePromptTokens, c.train.seq_len), c.train.sample_tokens, c.train.seq_len);
  if (c.precision.matmul == "fp8") {  // on any device: the CPU is the truth for the others
    o.compute = DType::bf16;
    const Fp8Products fp8 = fp8_products(c);
    o.fp8 = fp8.taken;
    o.fp8_head = fp8.head;
    o.fp8_fast_sums = c.precision.fp8_sums == "fast";
  }
  if (kind != device::Kind::cuda) return o;
  if (c.kernels.deterministic && c.kernels.attention == "cudnn")
    fail_user(
        "{}kernels.deterministic does not go with kernels.attention = \"cudnn\", whose backward pass adds in the order "
        "in "
        "which blocks finish; use \"auto\", \"hopper\" or \"flash\"",
        c.origins.prefix({"kernels.deterministic", "kernels.attention"}));
  if (c.kernels.deterministic) o.products.bits = o.attention.bits = ops::Bits::repeat;
  o.attention.by = ops::attention_by(c.kernels.attention);
  const std::string& matmul = c.precision.matmul;
  if (matmul == "bf16")
    o.compute = DType::bf16;
  else if (matmul == "tf32")
    o.products.math = o.attention.math = ops::Math::tf32;
  return o;
}

}  // namespace redline::model
