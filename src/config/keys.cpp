// The table of keys itself: one row a key.
#include "config/keys.h"

#include <algorithm>

namespace redline::config {
namespace {

// Tells &Config::model and &Model::layers to a Field by their types alone.
template <class Section, class T>
T member_type(T Section::*);

template <auto Section, auto Member>
constexpr auto in() {
  using T = decltype(member_type(Member));
  return Field<T>{[](Config& c) -> T& { return c.*Section.*Member; },
                  [](const Config& c) -> const T& { return c.*Section.*Member; }};
}

constexpr Range at_least(double low) { return {.low = low}; }
constexpr Range above(double low) { return {.low = low, .low_open = true}; }
constexpr Range between(double low, double high) { return {.low = low, .high = high}; }
constexpr Range from_to_below(double low, double high) { return {.low = low, .high = high, .high_open = true}; }
constexpr Range from_above_to(double low, double high) { return {.low = low, .high = high, .low_open = true}; }
constexpr Range any() { return {}; }

// Upper ends of sizes are far beyond any model; they keep products of sizes inside 64 bits.
std::vector<Key> build_table() {
  constexpr auto model = &Config::model;
  constexpr auto data = &Config::data;
  constexpr auto train = &Config::train;
  constexpr auto optim = &Config::optim;
  using enum OnResume;
  const AnyField preset = Field<std::string>{[](Config& c) -> std::string& { return c.preset; },
                                             [](const Config& c) -> const std::string& { return c.preset; }};
  // clang-format off
  return {
    {"preset", free, preset, any(), {}, "",
     "the shipped configuration that this one starts from"},

    {"model.init_from", free, in<model, &Model::init_from>(), any(), {}, "",
     "weights to start from: a Hugging Face folder, a run or a checkpoint, which also says [model] but for keys of the "
     "training such as dropout (docs/hugging_face.md); empty: random weights"},
    {"model.family", never, in<model, &Model::family>(), any(), {}, "",
     "the architecture, one of those that `redline info` lists"},
    {"model.layers", never, in<model, &Model::layers>(), between(1, 4096), {}, "",
     "transformer layers"},
    {"model.hidden", never, in<model, &Model::hidden>(), between(1, 1 << 18), {}, "",
     "width of the residual stream"},
    {"model.heads", never, in<model, &Model::heads>(), between(1, 4096), {}, "",
     "query heads of a layer"},
    {"model.kv_heads", never, in<model, &Model::kv_heads>(), between(0, 4096), {}, "",
     "key and value heads of a layer, a divisor of model.heads; 0: as many as model.heads"},
    {"model.head_dim", never, in<model, &Model::head_dim>(), between(0, kMaxHeadDim), {}, "",
     "width of one head, even; 0: model.hidden / model.heads"},
    {"model.ffn", never, in<model, &Model::ffn>(), between(1, 1 << 20), {}, "",
     "inner width of the gated block; with experts, of layers without them"},
    {"model.experts", never, in<model, &Model::experts>(), between(0, kMostExperts), {}, "",
     "MLPs of a layer, of which every token takes the best few (olmoe, qwen3_moe and mixtral only, which must have "
     "it); 0: a layer has one MLP"},
    {"model.experts_per_token", allowed, in<model, &Model::experts_per_token>(), between(0, kMostExperts), {}, "",
     "experts that a token takes, from 1 to model.experts"},
    {"model.expert_ffn", never, in<model, &Model::expert_ffn>(), between(0, 1 << 20), {}, "",
     "inner width of an expert; 0: model.ffn"},
    {"model.norm_topk", allowed, in<model, &Model::norm_topk>(), any(), {}, "",
     "whether the weights of a token's experts are divided by their sum; unset: as the family does, olmoe does not, "
     "qwen3_moe does, and mixtral accepts nothing else"},
    {"model.dense_layers", never, in<model, &Model::dense_layers>(), between(0, 4095), {}, "",
     "layers, counted from 0, with one MLP of model.ffn instead of experts (mlp_only_layers and decoder_sparse_step of "
     "Hugging Face; qwen3_moe only)"},
    {"model.router_aux", allowed, in<model, &Model::router_aux>(), at_least(0), {}, "",
     "coefficient of the balance of experts in training: with it routers learn to share tokens out evenly; reported "
     "losses are without it"},
    {"model.router_balance", allowed, in<model, &Model::router_balance>(), any(), {"layer", "model"}, "",
     "what model.router_aux evens out: the loads of each layer, or their sums over layers, as transformers has it, "
     "which lets a layer send all tokens to a few experts where another takes others", "\"model\""},
    {"model.router_z_loss", allowed, in<model, &Model::router_z_loss>(), at_least(0), {}, "",
     "coefficient of the mean square of the routers' logsumexp in training, which keeps their logits small"},
    {"model.vocab", never, in<model, &Model::vocab>(), between(1, 1 << 24), {}, "",
     "token ids are below it; at least the vocabulary of the data; unless it is set, the vocabulary of the data's "
     "tokenizer, and token files that bring none ask for it"},
    {"model.tied", never, in<model, &Model::tied>(), any(), {}, "",
     "whether the head shares the embedding's weight"},
    {"model.pad_token", allowed, in<model, &Model::pad_token>(), between(-1, 1 << 24), {}, "",
     "the token that fills rows elsewhere: its embedding is not trained, as Hugging Face does with pad_token_id; -1: "
     "none"},
    {"model.qk_norm", never, in<model, &Model::qk_norm>(), any(), {}, "",
     "RMSNorm on queries and keys; unset: what the family does, and nothing else is accepted"},
    {"model.qkv_bias", never, in<model, &Model::qkv_bias>(), any(), {}, "",
     "a bias on queries, keys and values; unset: what the family does, and nothing else is accepted"},
    {"model.attention_bias", never, in<model, &Model::attention_bias>(), any(), {}, "",
     "a bias on queries, keys, values and the projection after attention. Families: llama, qwen3, olmo2, smollm3, "
     "olmo3, gemma3, olmoe, qwen3_moe"},
    {"model.mlp_bias", never, in<model, &Model::mlp_bias>(), any(), {}, "",
     "a bias on the MLP's linears: gate, up and down (llama and smollm3 only)"},
    {"model.window", allowed, in<model, &Model::window>(), between(0, 1 << 30), {}, "tokens",
     "what a query sees in layers with a window: so many tokens of its document, itself the last; 0: no layer has one. "
     "Families: qwen2, qwen3, mistral, smollm3, olmo3, gemma3, qwen3_moe, mixtral"},
    {"model.layer_types", allowed, in<model, &Model::layer_types>(), any(), {"full_attention", "sliding_attention"}, "",
     "for each layer whether it has the window; empty: as the family does, of olmo3 all but every fourth, of gemma3 "
     "all but every sixth, of others all"},
    {"model.query_pre_attn_scalar", allowed, in<model, &Model::query_pre_attn_scalar>(), at_least(0), {}, "",
     "scores are divided by its square root; 0: model.head_dim (gemma3 only)"},
    {"model.rope_theta", allowed, in<model, &Model::rope_theta>(), above(0), {}, "",
     "base of the rotary position frequencies"},
    {"model.rope_local_theta", allowed, in<model, &Model::rope_local_theta>(), at_least(0), {}, "",
     "base of those of layers with a window, which no scaling stretches; 0: model.rope_theta (olmo3 and gemma3 only)"},
    {"model.rope_layers", allowed, in<model, &Model::rope_layers>(), between(0, 1), {}, "",
     "for each layer 1: it has rotary positions, 0: it has none (no_rope_layers of Hugging Face); empty: as the family "
     "does, of smollm3 all but every fourth (smollm3 only)"},
    {"model.rope_scaling", allowed, in<model, &Model::rope_scaling>(), any(), {"none", "linear", "llama3", "yarn"}, "",
     "how rotary frequencies are stretched for long context; linear: all of them, llama3 and yarn: the low ones"},
    {"model.rope_factor", allowed, in<model, &Model::rope_factor>(), at_least(1), {}, "",
     "how far frequencies are stretched (linear, llama3 and yarn scaling only)"},
    {"model.rope_low_freq_factor", allowed, in<model, &Model::rope_low_freq_factor>(), above(0), {}, "",
     "wavelengths above rope_original_len / this are stretched whole (llama3 scaling only)"},
    {"model.rope_high_freq_factor", allowed, in<model, &Model::rope_high_freq_factor>(), above(0), {}, "",
     "wavelengths below rope_original_len / this are left alone (llama3 scaling only)"},
    {"model.rope_original_len", allowed, in<model, &Model::rope_original_len>(), between(1, 1 << 24), {}, "tokens",
     "context length before the stretch (llama3 and yarn scaling only)"},
    {"model.rope_beta_fast", allowed, in<model, &Model::rope_beta_fast>(), above(0), {}, "",
     "frequencies that turn more often than this within rope_original_len are left alone (yarn scaling only)"},
    {"model.rope_beta_slow", allowed, in<model, &Model::rope_beta_slow>(), above(0), {}, "",
     "frequencies that turn less often than this within rope_original_len are stretched whole (yarn scaling only)"},
    {"model.rope_attention_factor", allowed, in<model, &Model::rope_attention_factor>(), at_least(0), {}, "",
     "factor of turned queries and keys; 0: 0.1 ln(rope_factor) + 1 (yarn scaling only)"},
    {"model.rope_truncate", allowed, in<model, &Model::rope_truncate>(), any(), {}, "",
     "whether the range between rope_beta_fast and rope_beta_slow is widened to whole pairs (yarn scaling only; not in "
     "olmo3 and gemma3)"},
    {"model.max_positions", free, in<model, &Model::max_positions>(), between(0, 1 << 30), {}, "tokens",
     "longest text that an exported model declares (max_position_embeddings); at least train.seq_len, whatever is set"},
    {"model.norm_eps", allowed, in<model, &Model::norm_eps>(), at_least(kSmallestFactor), {}, "",
     "added to the mean square inside RMSNorm"},
    {"model.dropout", allowed, in<model, &Model::dropout>(), from_to_below(0, 1), {}, "",
     "probability of zeroing an element of a branch before it joins the residual stream"},
    {"model.init", allowed, in<model, &Model::init>(), any(), {"normal", "zero_out"}, "",
     "how fresh weights begin; normal: all matrices random; zero_out: what writes into the residual stream is zero "
     "(the projections o and down; in olmo2, olmo3 and gemma3 the norms after them), so that a layer begins as "
     "nothing"},
    {"model.init_std", allowed, in<model, &Model::init_std>(), above(0), {}, "",
     "standard deviation of freshly initialised weights"},

    {"data.train", same_data, in<data, &Data::train>(), any(), {}, "",
     "what to train on: a folder of prepared shards, text and .jsonl files (also .gz and .zst), .parquet files, "
     "folders and globs, \"ping\" (a generated corpus of network measurements), or \"random:VOCABULARY\" (for "
     "measuring, which takes it where this is empty)", "\"ping\""},
    {"data.weights", new_order, in<data, &Data::weights>(), above(0), {}, "",
     "shares of the training tokens that the entries of data.train have, in their order; they need not add up to 1; "
     "empty: every document once an epoch"},
    {"data.eval", same_data, in<data, &Data::eval>(), any(), {}, "",
     "what to evaluate on; name=path makes a set with a loss of its own, and the first set is what ends a run; empty: "
     "a part of data.train that training never sees"},
    {"data.tokenizer", same_data, in<data, &Data::tokenizer>(), any(), {}, "",
     "bytes, ping, a tokenizer.json, a folder that holds one, or a sentencepiece .model; empty: that of prepared data, "
     "for text that of model.init_from, and bytes for plain text without it"},
    {"data.roles", same_data, in<data, &Data::roles>(), any(), {"auto", "none"}, "",
     "whether names say what the files of a folder are for; auto: train, val, valid, validation, eval and test do "
     "(docs/data.md); none: every file is read", "\"none\""},
    {"data.token_type", same_data, in<data, &Data::token_type>(), any(), {"auto", "uint16", "uint32", "int64"}, "",
     "the integers of .bin files without a header; auto: as the words of the file show, and refused where they do "
     "not", "\"uint16\""},
    {"data.text_field", new_order, in<data, &Data::text_field>(), any(), {}, "",
     "the field of each JSON object of a .jsonl file, or the column of a .parquet file, that holds the text; a dot "
     "leads into inner objects"},
    {"data.chat", new_order, in<data, &Data::chat>(), any(), {"none", "auto", "chatml", "llama3"}, "",
     "how a .jsonl file of conversations (messages, or prompt and completion) becomes tokens, of which only the "
     "answers are learned; auto: as the tokenizer's own template says; none: documents are plain text"},
    {"data.bos", new_order, in<data, &Data::bos>(), any(), {"none", "auto", "always"}, "",
     "the token that begins a text, such as <s>, before each document that is tokenized while training; "
     "auto: as the tokenizer's own library has it; conversations begin as their template says; token files and "
     "prepared folders stay as they are", "\"none\""},
    {"data.separator", new_order, in<data, &Data::separator>(), any(), {}, "",
     "what stands between the documents of a text file, with \\n and \\t; empty: a file is one document"},
    {"data.on_error", free, in<data, &Data::on_error>(), any(), {"stop", "skip"}, "",
     "at a malformed document or a broken archive that is streamed: stop, or pass over it and warn"},
    {"data.max_document_mib", free, in<data, &Data::max_document_mib>(), between(1, 1 << 20), {}, "MiB",
     "the longest document that is read while training, before it is parsed; a longer one is malformed "
     "(data.on_error)", "1024"},
    {"data.packing", new_order, in<data, &Data::packing>(), any(), {"pack", "stream", "bucket", "pad"}, "",
     "how documents, cut into pieces of at most a row, fill a batch; pack: best fit, pieces whole; stream: pieces "
     "joined, and cut where a batch ends; bucket: pieces of similar length; pad: one piece a row"},
    {"data.buckets", new_order, in<data, &Data::buckets>(), between(1, 1 << 24), {}, "tokens",
     "longest lengths of the buckets of data.packing = \"bucket\"; empty: powers of two from 64; a row is always one"},
    {"data.long_documents", new_order, in<data, &Data::long_documents>(), any(), {"split", "truncate"}, "",
     "what happens to a document longer than a row: split into pieces of a row, or its rest dropped and counted"},
    {"data.max_segments", allowed, in<data, &Data::max_segments>(), between(1, 1 << 20), {}, "documents",
     "most documents a row, in the mean over a batch; a batch closes when it is reached"},
    {"data.shuffle", new_order, in<data, &Data::shuffle>(), any(), {}, "",
     "whether each epoch reads the documents in another random order; false: as they stand"},
    {"data.shuffle_buffer", new_order, in<data, &Data::shuffle_buffer>(), between(1, 1 << 20), {}, "pieces",
     "how many pieces of documents are shuffled among themselves where the data are read from front to back (.jsonl, "
     ".parquet, compressed or tokenized while training)"},
    {"data.workers", free, in<data, &Data::workers>(), between(-1, 256), {}, "threads",
     "threads that read and tokenize; 0: none, batches are made when they are asked for; -1: as the machine allows; "
     "batches do not depend on it"},
    {"data.prefetch", free, in<data, &Data::prefetch>(), between(1, 1024), {}, "batches",
     "batches that are made ahead of training"},
    {"data.ram_mib", free, in<data, &Data::ram_mib>(), between(1, 1 << 24), {}, "MiB",
     "most memory for batches made and documents read ahead"},
    {"data.debug", free, in<data, &Data::debug>(), any(), {}, "",
     "print every few seconds what each stage of the data pipeline does and which is the slowest; also kept in the "
     "run's data_pipeline.jsonl"},
    {"data.documents", new_order, in<data, &Data::documents>(), at_least(0), {}, "documents",
     "size of the generated corpus; 0: endless"},
    {"data.seed", new_order, in<data, &Data::seed>(), at_least(0), {}, "",
     "seed of the generated corpus and of the order in which pieces of documents are read"},

    {"train.batch_size", rows, AutomaticInteger{in<train, &Train::batch_size>(), in<train,
     &Train::automatic_batch_size>()},
     between(1, 1 << 24), {}, "rows",
     "rows of a micro-batch; \"auto\": the fastest that fits, found by a plan and a few steps on the device, and "
     "train.accumulate and train.recompute with it; a step keeps the rows of the number that it stands in for"},
    {"train.seq_len", new_order, in<train, &Train::seq_len>(), between(1, 1 << 24), {}, "tokens",
     "length of a row; longer documents are cut into pieces of it"},
    {"train.accumulate", rows, in<train, &Train::accumulate>(), between(1, 1 << 20), {}, "micro-batches",
     "micro-batches whose gradients make one step"},
    {"train.accumulate_from", rows, in<train, &Train::accumulate_from>(), between(0, 1 << 20), {}, "micro-batches",
     "micro-batches of the first step, from which a step grows to train.accumulate; 0: all steps are as large"},
    {"train.accumulate_ramp_steps", allowed, in<train, &Train::accumulate_ramp_steps>(), between(0, 1 << 30), {},
     "steps",
     "steps over which a step grows from train.accumulate_from to train.accumulate micro-batches"},
    {"train.seq_len_from", new_order, in<train, &Train::seq_len_from>(), between(0, 1 << 24), {}, "tokens",
     "longest document of the first step, from which documents grow to train.seq_len: longer pieces are cut further, "
     "and their order stays; 0: all steps have whole rows"},
    {"train.seq_len_ramp_steps", new_order, in<train, &Train::seq_len_ramp_steps>(), between(0, 1 << 30), {}, "steps",
     "steps over which documents grow from train.seq_len_from to train.seq_len"},
    {"train.max_steps", free, in<train, &Train::max_steps>(), at_least(0), {}, "steps",
     "where training ends; 0: where train.max_tokens, train.epochs or train.max_hours says; of several, whichever "
     "comes first"},
    {"train.max_tokens", free, in<train, &Train::max_tokens>(), at_least(0), {}, "tokens",
     "where training ends, in tokens; 0: where train.max_steps or train.epochs says"},
    {"train.epochs", free, in<train, &Train::epochs>(), between(0, 1'000'000), {}, "epochs",
     "where training ends, in passes over the data; the steps are counted before the run, for which .jsonl, .parquet "
     "and compressed files are read once; 0: where train.max_steps or train.max_tokens says"},
    {"train.max_hours", free, in<train, &Train::max_hours>(), between(0, 1'000'000), {}, "hours",
     "where training ends, in hours of all its sessions; 0: no end by time; of several, whichever comes first"},
    {"train.fit_hours", free, in<train, &Train::fit_hours>(), any(), {}, "",
     "the number of steps, and with it the schedule of the learning rate, is what train.max_hours has room for at the "
     "speed that is measured"},
    {"train.patience", free, in<train, &Train::patience>(), at_least(0), {}, "evaluations",
     "evaluations in a row without a better held-out loss after which training ends; the best checkpoint is kept; 0: "
     "it goes on"},
    {"train.target_loss", free, in<train, &Train::target_loss>(), at_least(0), {}, "nats",
     "training ends once an evaluation reaches this held-out loss; the best checkpoint is kept; 0: none"},
    {"train.seed", allowed, in<train, &Train::seed>(), at_least(0), {}, "",
     "seed of the initial weights and of dropout"},
    {"train.eval_every", free, in<train, &Train::eval_every>(), at_least(0), {}, "steps",
     "steps between evaluations; 0: at the end only"},
    {"train.eval_tokens", free, in<train, &Train::eval_tokens>(), at_least(0), {}, "tokens",
     "held-out tokens of one evaluation, at most: the first pieces of an order that no setting changes, and so the "
     "same ones for any batch and any number of ranks; 0: as train.eval_batches says, and where that and "
     "train.eval_every are 0 as well, nothing is evaluated", "0"},
    {"train.eval_batches", free, in<train, &Train::eval_batches>(), between(0, 1 << 24), {}, "batches",
     "batches of one evaluation, at most, instead of train.eval_tokens: the tokens change with the batch then, and "
     "losses of other batches cannot be compared; 0: as train.eval_tokens says", "8"},
    {"train.sample_every", free, in<train, &Train::sample_every>(), at_least(0), {}, "steps",
     "steps between samples of text from the model as it is; 0: never"},
    {"train.sample_prompts", free, in<train, &Train::sample_prompts>(), any(), {}, "",
     "the texts that samples continue, at most 256 tokens each; empty: the beginning of a held-out document"},
    {"train.sample_tokens", free, in<train, &Train::sample_tokens>(), between(1, 1 << 20), {}, "tokens",
     "length of a sample, at most: it ends where its document does"},
    {"train.sample_temperature", free, in<train, &Train::sample_temperature>(), between(0, 100), {}, "",
     "how freely the tokens of samples are drawn; 0: always the likeliest; the numbers drawn are the same at every "
     "step"},
    {"train.recompute", free, in<train, &Train::recompute>(), any(), {"none", "mlp", "block", "auto"}, "",
     "what the backward pass computes again instead of keeping it: nothing, the inner values of the SwiGLU block, or "
     "whole layers; auto: no more than it takes to fit, by kind and by layer; where a run does not fit, memory.fit "
     "computes more again than this says"},
    {"train.z_loss", allowed, in<train, &Train::z_loss>(), at_least(0), {}, "",
     "adds this many times log(sum exp(logits))^2 to the loss that is trained on, which keeps logits near zero; the "
     "reported loss is without it"},
    {"train.average", allowed, in<train, &Train::average>(), any(), {"none", "ema", "last"}, "",
     "an average of the weights that is evaluated beside them and exported; ema: exponential; last: the plain mean "
     "over the last train.average_steps steps"},
    {"train.average_steps", allowed, in<train, &Train::average_steps>(), at_least(1), {}, "steps",
     "how far train.average reaches back"},

    {"optim.name", never, in<optim, &Optim::name>(), any(), {"adamw", "muon"}, "",
     "the optimizer; muon: orthogonalised momentum for the matrices of the layers, AdamW for embedding, head and "
     "norms"},
    {"optim.lr", free, in<optim, &Optim::lr>(), at_least(0), {}, "",
     "peak learning rate"},
    {"optim.min_lr", free, in<optim, &Optim::min_lr>(), at_least(0), {}, "",
     "learning rate at the end of the schedule"},
    {"optim.warmup_steps", free, in<optim, &Optim::warmup_steps>(), at_least(0), {}, "steps",
     "steps over which the learning rate rises from zero; a run that ends inside them only rises"},
    {"optim.warmup_tokens", free, in<optim, &Optim::warmup_tokens>(), at_least(0), {}, "tokens",
     "the warm-up in tokens, padding included, instead of optim.warmup_steps: as many steps as come nearest; 0: that "
     "counts"},
    {"optim.warmup_fraction", free, in<optim, &Optim::warmup_fraction>(), between(0, 1), {}, "",
     "the warm-up as a share of all steps, instead of optim.warmup_steps: as many as come nearest, at least one; 0: "
     "that counts"},
    {"optim.schedule", free, in<optim, &Optim::schedule>(), any(), {"constant", "linear", "cosine", "wsd"}, "",
     "how the learning rate falls after the warm-up; wsd: stable, then a decay (optim.decay_shape)"},
    {"optim.decay_fraction", free, in<optim, &Optim::decay_fraction>(), from_above_to(0, 1), {}, "",
     "share of all steps, at the end, over which wsd decays"},
    {"optim.decay_tokens", free, in<optim, &Optim::decay_tokens>(), at_least(0), {}, "tokens",
     "the decay of wsd in tokens of full steps, padding included, instead of optim.decay_fraction: as many steps as "
     "come nearest; 0: that counts"},
    {"optim.decay_shape", free, in<optim, &Optim::decay_shape>(), any(), {"linear", "sqrt"}, "",
     "how wsd decays; sqrt: by one minus the root of the share of the decay that has passed, fast at first"},
    {"optim.schedule_start", free, in<optim, &Optim::schedule_start>(), at_least(0), {}, "steps",
     "the step that the schedule counts from: a resume that warms the rate up again, or anneals it, sets the step that "
     "it goes on from"},
    {"optim.weight_decay", free, in<optim, &Optim::weight_decay>(), at_least(0), {}, "",
     "decoupled weight decay of matrices; norms have none"},
    {"optim.beta1", free, in<optim, &Optim::beta1>(), from_to_below(0, 1), {}, "",
     "decay of the first moment"},
    {"optim.beta2", free, in<optim, &Optim::beta2>(), from_to_below(0, 1), {}, "",
     "decay of the second moment"},
    {"optim.eps", free, in<optim, &Optim::eps>(), at_least(kSmallestFactor), {}, "",
     "added to the root of the second moment"},
    {"optim.clip", free, in<optim, &Optim::clip>(), at_least(0), {}, "",
     "largest norm of the whole gradient; 0: no clipping"},
    {"optim.weight_decay_falls", free, in<optim, &Optim::weight_decay_falls>(), any(), {}, "",
     "whether optim.weight_decay is scaled by the learning rate's share of its peak, so that it falls to zero with it"},
    {"optim.cautious_decay", free, in<optim, &Optim::cautious_decay>(), any(), {}, "",
     "whether the matrices that Muon updates decay only where the update, too, moves a weight towards zero"},
    {"optim.moments", allowed, in<optim, &Optim::moments>(), any(), {"fp32", "bf16", "8bit"}, "",
     "how AdamW keeps its moments; bf16: rounded at random; 8bit: in blocks of 256 of one scale, matrices of the "
     "layers only"},
    {"optim.muon_momentum", free, in<optim, &Optim::muon_momentum>(), from_to_below(0, 1), {}, "",
     "momentum of Muon after its warm-up"},
    {"optim.muon_momentum_from", free, in<optim, &Optim::muon_momentum_from>(), from_to_below(0, 1), {}, "",
     "momentum of Muon at the first step"},
    {"optim.muon_momentum_steps", free, in<optim, &Optim::muon_momentum_steps>(), at_least(0), {}, "steps",
     "steps over which the momentum of Muon rises"},
    {"optim.muon_rounds", free, in<optim, &Optim::muon_rounds>(), between(1, 12), {}, "rounds",
     "rounds that orthogonalise an update of Muon"},
    {"optim.muon_coefficients", free, in<optim, &Optim::muon_coefficients>(), any(), {"quintic", "polar_express"}, "",
     "the polynomials of these rounds: the same in each, or those of Polar Express, each round its own"},
    {"optim.muon_beta2", never, in<optim, &Optim::muon_beta2>(), from_to_below(0, 1), {}, "",
     "decay of NorMuon's second moment, one value a row of a matrix; 0: plain Muon"},

    {"precision.matmul", allowed, in<&Config::precision, &Precision::matmul>(), any(), {"bf16", "fp8", "tf32",
     "fp32"}, "",
     "what matrix products take on a GPU; the CPU backend computes in fp32, or simulates fp8 (docs/fp8.md)"},
    {"precision.fp8", allowed, in<&Config::precision, &Precision::fp8>(), any(), {"auto", "all"}, "",
     "which products of linears take fp8 where matmul is fp8; auto: those that it makes faster on this card, with "
     "their casts, and all where kernels.deterministic is on or the device is the CPU"},
    {"precision.fp8_products", allowed, in<&Config::precision, &Precision::fp8_products>(), any(), {}, "",
     "the products that take fp8: LINEAR/forward, LINEAR/input, LINEAR/weight, or none alone; empty: as precision.fp8 "
     "says, and a run keeps here what that came to"},
    {"precision.fp8_sums", allowed, in<&Config::precision, &Precision::fp8_sums>(), any(), {"fast", "exact"}, "",
     "how a GPU adds up the outputs of products in fp8; fast: with some 14 bits over a few products at a time, as the "
     "hardware does by itself; exact: in fp32, 4 to 8% slower; gradients are always exact"},
    {"precision.head", allowed, in<&Config::precision, &Precision::head>(), any(), {"bf16", "fp8"}, "",
     "what the gradients of the head take where matmul is fp8; logits are always of bf16"},
    {"precision.gradients", allowed, in<&Config::precision, &Precision::gradients>(), any(), {"fp32", "bf16"}, "",
     "how gradients of weights are kept, and added up over micro-batches; bf16: rounded at random, two bytes less for "
     "each parameter (docs/memory.md)"},
    {"precision.masters", allowed, in<&Config::precision, &Precision::masters>(), any(), {"fp32", "bf16"}, "",
     "how weights are kept from update to update; bf16: rounded at random, and products read them as they are: four "
     "bytes less for each parameter (docs/memory.md)"},

    {"kernels.graphs", free, in<&Config::kernels, &Kernels::graphs>(), any(), {"auto", "off"}, "",
     "auto: a GPU replays each step as captured CUDA graphs; off: it is given node after node"},
    {"kernels.attention", free, in<&Config::kernels, &Kernels::attention>(), any(), {"auto", "cudnn", "hopper",
     "flash", "reference"}, "",
     "who computes attention on a GPU; auto: the fastest that can, measured on the first batch"},
    {"kernels.tuning", free, in<&Config::kernels, &Kernels::tuning>(), any(), {"off", "on", "max"}, "",
     "how the algorithm of each product on a GPU is found; off: cuBLASLt's first proposal; on: the fastest of its few "
     "best, measured; max: the fastest of all it proposes"},
    {"kernels.logits_rows", free, in<&Config::kernels, &Kernels::logits_rows>(), between(0, 1 << 24), {}, "rows",
     "tokens whose logits exist at a time: more take more memory; 0: as suits the device and the vocabulary"},
    {"kernels.deterministic", free, in<&Config::kernels, &Kernels::deterministic>(), any(), {}, "",
     "a GPU repeats runs bit for bit: no kernel whose sums depend on timing, and products as cuBLASLt's heuristic "
     "proposes them"},

    {"memory.fit", free, in<&Config::memory, &Memory::fit>(), any(), {"auto", "none"}, "",
     "a run that does not fit: auto finds the fastest set of what is left out, is computed again or lies in the host's "
     "memory that does, and says it, while no bit of the run changes; none refuses it"},
    {"memory.limit", free, in<&Config::memory, &Memory::limit>(), any(), {}, "",
     "most memory of the device that a rank's values take, as \"24GiB\"; empty: what is free"},
    {"memory.host_limit", free, in<&Config::memory, &Memory::host_limit>(), any(), {}, "",
     "most memory of the host that a rank's values take, as \"64GiB\"; empty: what is free, shared out among the ranks "
     "of the host"},

    {"checkpoint.every", free, in<&Config::checkpoint, &Checkpoint::every>(), at_least(0), {}, "steps",
     "steps between checkpoints; 0: none by steps; of this and checkpoint.minutes, whichever is due first, and one at "
     "the end"},
    {"checkpoint.minutes", free, in<&Config::checkpoint, &Checkpoint::minutes>(), between(0, 1'000'000), {}, "minutes",
     "after the last checkpoint, or the start, at which another is due, by the clock of rank 0; 0: none by time", "0"},
    {"checkpoint.keep", free, in<&Config::checkpoint, &Checkpoint::keep>(), at_least(1), {}, "checkpoints",
     "newest checkpoints that are kept"},
    {"checkpoint.keep_every", free, in<&Config::checkpoint, &Checkpoint::keep_every>(), at_least(0), {}, "steps",
     "checkpoints at multiples of it are kept for good; 0: none"},
    {"checkpoint.on_error", free, in<&Config::checkpoint, &Checkpoint::on_error>(), any(), {"continue", "stop"}, "",
     "where a checkpoint cannot be written: warn, train on and try again at the next one, or end the run; the last one "
     "of a run must succeed"},

    {"guard.skips", free, in<&Config::guard, &Guard::skips>(), at_least(0), {}, "steps",
     "steps in a row whose update may be left out because their loss or gradient norm is not finite, or by "
     "guard.spike; one more ends the run, or rolls it back"},
    {"guard.rollbacks", free, in<&Config::guard, &Guard::rollbacks>(), at_least(0), {}, "times",
     "how often a run may go back to its last good checkpoint, pass over the batches that spoiled it, and go on"},
    {"guard.spike", free, in<&Config::guard, &Guard::spike>(), at_least(0), {}, "",
     "a gradient norm of more than so many times the usual one leaves the update out as well; 0: none does"},

    {"parallel.ranks", rows, in<&Config::parallel, &Parallel::ranks>(), between(0, 1024), {}, "",
     "ranks, or groups of parallel.sequence ranks, that train.accumulate is meant for, kept by every run; on another "
     "number of them train.accumulate follows, so that a step keeps its rows; 0: any number"},
    {"parallel.mode", free, in<&Config::parallel, &Parallel::mode>(), any(), {"auto", "ddp", "zero1", "fsdp"}, "",
     "what the ranks of a run share out: nothing (ddp), moments and master weights (zero1), gradients and weights as "
     "well (fsdp); auto: the fastest that fits, by the plan where it knows the card, else zero1, and fsdp where that "
     "does not fit"},
    {"parallel.wire", allowed, in<&Config::parallel, &Parallel::wire>(), any(), {"fp32", "bf16"}, "",
     "what gradients are on their way between ranks: bf16 halves the bytes and rounds every sum"},
    {"parallel.sequence", free, in<&Config::parallel, &Parallel::sequence>(), between(1, 64), {}, "",
     "ranks that have a part of every row each, for rows that one card cannot hold; train.batch_size is then the rows "
     "of such a group of ranks, and attention has all tokens of a part of the heads (model.heads, train.seq_len and "
     "the ranks are multiples of it); 1: every rank has rows of its own"},
    {"parallel.shards", free, in<&Config::parallel, &Parallel::shards>(), between(0, 1024), {}, "",
     "ranks that share out one copy of what zero1 and fsdp share out, those of a machine for instance (HSDP): weights "
     "travel among them alone, and gradients are added up between such groups once a step; 0: all ranks"},
    {"parallel.network", free, in<&Config::parallel, &Parallel::network>(), any(),
     {"auto", "nvlink", "ndr", "hdr", "xdr", "roce", "roce-200", "ethernet"}, "",
     "what connects the machines of a run: \"auto\" of parallel.mode and of train.batch_size chooses by it on cards, "
     "and so does plan --gpus (docs/ranks.md has the figures; nvlink: all ranks are one node); auto: ndr is taken for "
     "granted, and the run says so"},
    {"parallel.timeout", free, in<&Config::parallel, &Parallel::timeout>(), between(1, 86400), {}, "seconds",
     "without progress of one rank, after which a run on several ranks ends and names it"},

    {"log.every", free, in<&Config::log, &Log::every>(), at_least(1), {}, "steps",
     "steps between console lines"},
    {"log.fp8_every", free, in<&Config::log, &Log::fp8_every>(), at_least(0), {}, "steps",
     "steps between looks at the tensors that are cast to fp8, the first step's aside (fp8.jsonl); 0: none"},
    {"log.norms_every", free, in<&Config::log, &Log::norms_every>(), at_least(0), {}, "steps",
     "steps between looks at the norms of gradient, weight and update of every tensor and at the gradient's noise "
     "(norms.jsonl); 0: none"},
    {"log.router_every", free, in<&Config::log, &Log::router_every>(), at_least(0), {}, "steps",
     "steps between rows with the load of every expert and the entropy of every router, the first step's aside "
     "(router.jsonl); 0: none; counts with model.experts"},
    {"log.sinks", free, in<&Config::log, &Log::sinks>(), any(), {"console", "jsonl", "tensorboard", "prometheus"}, "",
     "where a run tells of itself: console lines, metrics.jsonl and events.jsonl, TensorBoard event files, "
     "metrics.prom"},
  };
  // clang-format on
}

}  // namespace

const std::vector<Key>& keys() {
  static const std::vector<Key> table = build_table();
  return table;
}

const Key* find_key(std::string_view name) {
  const auto it = std::ranges::find(keys(), name, &Key::name);
  return it == keys().end() ? nullptr : &*it;
}

bool is_section(std::string_view name) {
  return std::ranges::any_of(keys(), [&](const Key& key) {
    return key.name.size() > name.size() && key.name.starts_with(name) && key.name[name.size()] == '.';
  });
}

}  // namespace redline::config
