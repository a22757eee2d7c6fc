// The typed tree of everything a user can set, as plain data, and the place where each key was set. The key table
// (config/keys.cpp) has the meaning, the range and the help of each key; parsing, validation, --help, the resolved dump
// and docs/config.md come from it.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace redline::config {

inline constexpr std::string_view kCommandLine = "on the command line";

// The place where each key of a configuration was set, so that a rule over several keys, or a check against the data,
// can still point at a line.
class Origins {
 public:
  // `shipped`: by a preset, which the user chose but did not write.
  void set(std::string_view key, std::string place, bool shipped = false) {
    places_[std::string(key)] = {std::move(place), ++count_, shipped};
  }

  // Whether the user wrote the key, in a file or on the command line.
  bool written(std::string_view key) const {
    const auto it = places_.find(key);
    return it != places_.end() && !it->second.shipped;
  }

  // Whether anything but the default says the key: the user, a preset, or whoever filled it in from elsewhere.
  bool known(std::string_view key) const { return places_.find(key) != places_.end(); }

  bool on_command_line(std::string_view key) const {
    const auto it = places_.find(key);
    return it != places_.end() && it->second.text == kCommandLine;
  }

  // "configs/x.toml:12: " for whichever of the keys was set last; empty when all of them are defaults.
  std::string prefix(std::initializer_list<std::string_view> keys) const;

  // Where values came from does not make two configurations different.
  bool operator==(const Origins&) const { return true; }

 private:
  struct Place {
    std::string text;
    int order = 0;
    bool shipped = false;
  };
  std::map<std::string, Place, std::less<>> places_;
  int count_ = 0;
};

inline constexpr std::int64_t kMaxHeadDim = 256;   // the attention kernels hold it in registers
inline constexpr std::int64_t kMostExperts = 512;  // a warp of a card has a row of their logits in registers
inline constexpr double kSmallestFactor = 1e-30;   // smaller ones would be 0 in fp32

struct Model {
  std::string init_from;         // a folder of weights to start from, which says the rest; empty: random weights
  std::string family = "llama";  // one of model/registry.cpp
  std::int64_t layers = 6, hidden = 256, heads = 4;
  std::int64_t kv_heads = 0;  // 0: as many as heads
  std::int64_t head_dim = 0;  // 0: hidden / heads
  std::int64_t ffn = 704, vocab = 267;
  std::int64_t experts = 0;  // of a layer; 0: it has one MLP
  std::int64_t experts_per_token = 0;
  std::int64_t expert_ffn = 0;             // inner width of an expert; 0: ffn
  std::optional<bool> norm_topk;           // a token's weights of experts add up to 1; unset: as the family does
  std::vector<std::int64_t> dense_layers;  // those without experts
  double router_aux = 0.01;                // coefficient of the balance of loads in training
  std::string router_balance = "layer";    // layer | model: of each layer's loads, or of their sums over layers
  double router_z_loss = 0;                // and of the square of the routers' logsumexp
  bool tied = false;
  std::int64_t pad_token = -1;             // its row of the embedding gets no gradient; -1: there is none
  std::optional<bool> qk_norm, qkv_bias;   // unset: as the family does
  bool attention_bias = false;             // on q, k, v and the projection after attention
  bool mlp_bias = false;                   // on the MLP's three linears
  std::int64_t window = 0;                 // keys that a query sees in a layer with a window; 0: none has one
  std::vector<std::string> layer_types;    // full_attention | sliding_attention; empty: as the family does
  std::int64_t query_pre_attn_scalar = 0;  // scores are divided by its root; 0: head_dim
  double rope_theta = 10000.0;
  double rope_local_theta = 0;            // of layers with a window; 0: rope_theta
  std::vector<std::int64_t> rope_layers;  // 1: a layer has RoPE, 0: none; empty: as the family does
  std::string rope_scaling = "none";      // none | linear | llama3 | yarn
  double rope_factor = 8.0, rope_low_freq_factor = 1.0, rope_high_freq_factor = 4.0;
  std::int64_t rope_original_len = 8192;
  double rope_beta_fast = 32, rope_beta_slow = 1, rope_attention_factor = 0;  // 0: that of the paper
  bool rope_truncate = true;       // yarn's range begins and ends at whole pairs
  std::int64_t max_positions = 0;  // that an exported model declares; fewer than train.seq_len: as many as that
  double norm_eps = 1e-5;
  double dropout = 0.0;
  std::string init = "normal";  // normal | zero_out
  double init_std = 0.02;
  bool operator==(const Model&) const = default;
};

struct Data {
  std::vector<std::string> train;        // prepared folders, text files, "ping"; empty: require_data() asks for it
  std::vector<double> weights;           // of the entries of train; empty: as much of each as it has
  std::vector<std::string> eval;         // empty: held out from the training source
  std::string tokenizer;                 // empty: the one that the data bring or imply
  std::string roles = "auto";            // auto | none: whether names of files in a folder say what they are for
  std::string token_type = "auto";       // auto | uint16 | uint32 | int64: of token files without a header
  std::string text_field = "text";       // of JSON objects
  std::string chat = "none";             // none | auto | chatml | llama3: how conversations become tokens
  std::string bos = "auto";              // none | auto | always: the token that begins a document
  std::int64_t max_document_mib = 256;   // of a document of a stream; a longer one is malformed
  std::string on_error = "stop";         // stop | skip: at malformed documents of a stream
  std::string separator;                 // between the documents of a text file; empty: a file is one
  std::string packing = "pack";          // pack | stream | bucket | pad
  std::vector<std::int64_t> buckets;     // empty: powers of two
  std::string long_documents = "split";  // split | truncate
  std::int64_t max_segments = 32;        // documents a row, at most, in the mean over a batch
  bool shuffle = true;
  std::int64_t shuffle_buffer = 2048;  // pieces of documents, where the data are read from front to back
  std::int64_t workers = -1;           // threads; -1: as the machine allows, 0: none
  std::int64_t prefetch = 4;           // batches
  std::int64_t ram_mib = 1024;
  bool debug = false;
  std::int64_t documents = 0;  // of the generated corpus; 0: endless
  std::int64_t seed = 0;
  bool operator==(const Data&) const = default;
};

struct Train {
  std::int64_t batch_size = 8, seq_len = 256, accumulate = 1;
  bool automatic_batch_size = false;  // "auto": batch_size is then the number it stands in for
  std::int64_t accumulate_from = 0, accumulate_ramp_steps = 0;  // the batch's ramp; 0: none
  std::int64_t seq_len_from = 0, seq_len_ramp_steps = 0;        // the ramp of document lengths; 0: none
  std::int64_t max_steps = 0;  // the first of these three to come ends the run; 0: none
  std::int64_t max_tokens = 0;
  double epochs = 0;
  double max_hours = 0;       // of training, all sessions together; 0: no end by time
  bool fit_hours = false;     // the steps, and with them the schedule, follow what max_hours has room for
  std::int64_t patience = 0;  // evaluations without a better loss, after which the run ends; 0: never
  double target_loss = 0;     // held out: the run ends once it is reached; 0: none
  std::int64_t seed = 0;
  std::int64_t eval_every = 0;              // 0: at the end only
  std::int64_t eval_tokens = 65'536;        // held out, of one evaluation; 0: eval_batches says
  std::int64_t eval_batches = 0;            // the same in batches; 0: eval_tokens says
  std::int64_t sample_every = 0;            // 0: never
  std::vector<std::string> sample_prompts;  // empty: the beginning of a held-out document
  std::int64_t sample_tokens = 64;
  double sample_temperature = 0.8;  // 0: always the likeliest token
  std::string recompute = "none";   // none | mlp | block | auto
  double z_loss = 0;                // times the square of the logarithm of the softmax's sum, in the loss
  std::string average = "none";     // none | ema | last: of weights
  std::int64_t average_steps = 100;
  bool operator==(const Train&) const = default;
};

struct Optim {
  std::string name = "adamw";  // adamw | muon
  double lr = 3e-4, min_lr = 0.0;
  std::int64_t warmup_steps = 0, warmup_tokens = 0;
  double warmup_fraction = 0;          // of the steps; at most one of the three is set
  std::string schedule = "cosine";     // constant | linear | cosine | wsd
  double decay_fraction = 0.2;         // of the steps, at the end: wsd only
  std::int64_t decay_tokens = 0;       // the same in tokens; 0: decay_fraction says
  std::string decay_shape = "linear";  // linear | sqrt: wsd only
  std::int64_t schedule_start = 0;     // the step that the schedule counts from
  double weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double clip = 1.0;                // 0: no clipping
  bool weight_decay_falls = false;  // with the learning rate
  bool cautious_decay = false;      // only where the update goes the same way
  std::string moments = "fp32";     // fp32 | bf16 | 8bit
  double muon_momentum = 0.95, muon_momentum_from = 0.85;
  std::int64_t muon_momentum_steps = 300;
  std::int64_t muon_rounds = 5;
  std::string muon_coefficients = "quintic";  // quintic | polar_express
  double muon_beta2 = 0;                      // of NorMuon's second moment; 0: none
  bool operator==(const Optim&) const = default;
};

struct Precision {
  std::string matmul = "bf16";            // operands of products; the CPU backend computes in fp32, or as fp8 does
  std::string fp8 = "auto";               // auto | all: which products of a run in fp8 take it
  std::vector<std::string> fp8_products;  // the choice of auto, once it is made
  std::string fp8_sums = "fast";          // fast | exact: of the outputs of products in fp8
  std::string head = "bf16";              // bf16 | fp8: the head's gradients in a run in fp8
  std::string gradients = "fp32";         // fp32 | bf16: as they are added up over micro-batches
  std::string masters = "fp32";           // fp32 | bf16: weights as updates leave them
  bool operator==(const Precision&) const = default;
};

struct Kernels {
  std::string graphs = "auto";     // auto | off
  std::string attention = "auto";  // auto | cudnn | hopper | flash | reference
  std::string tuning = "on";       // off | on | max: of the products' algorithms
  std::int64_t logits_rows = 0;    // of logits that exist at a time; 0: as suits the device
  bool deterministic = false;
  bool operator==(const Kernels&) const = default;
};

// Where a run's bytes lie and what is computed again, so that it fits. Every start chooses anew (perf/fit.h): no file
// keeps it, and no bit of a run depends on it.
struct Placement {
  bool moments = false, masters = false, averages = false;  // in the host's memory
  std::int64_t moment_layers = 0;  // moments of the last layers and what stands behind them alone; 0: all moments
  bool gradients = false;          // there, too, and on the device a layer at a time
  bool weights = false;            // the same of what products read: working copies, or parameters where there are none
  bool residuals = false;          // what layers keep for their way back, in the host's memory meanwhile
  bool copies = false;  // working copies of weights that training reads in eight bits alone: made where others do
  std::string recompute = {};         // none | mlp | rest | block; empty: as train.recompute says
  std::int64_t recompute_layers = 0;  // of the first layers, which residuals counts, too; 0: of all
  bool state_on_host() const { return moments || masters || averages || gradients || weights; }
  bool on_host() const { return state_on_host() || residuals; }
  bool operator==(const Placement&) const = default;
};

struct Memory {
  std::string limit, host_limit;  // "24GiB"; empty: what is free
  std::string fit = "auto";       // auto | none
  Placement placement;
  bool operator==(const Memory&) const = default;
};

struct Checkpoint {
  std::int64_t every = 0;             // steps; 0: none by steps
  double minutes = 15;                // since the last one; 0: none by time
  std::int64_t keep = 2;              // the last K
  std::int64_t keep_every = 0;        // and every Nth step for good; 0: none
  std::string on_error = "continue";  // continue | stop: where a save fails
  bool operator==(const Checkpoint&) const = default;
};

struct Guard {
  std::int64_t skips = 3;      // updates in a row that may be left out
  std::int64_t rollbacks = 0;  // times that a run may go back to a good checkpoint
  double spike = 0;            // a norm so many times the usual one leaves the update out; 0: none does
  bool operator==(const Guard&) const = default;
};

struct Log {
  std::int64_t every = 1;           // steps between console lines
  std::int64_t fp8_every = 100;     // steps between checks of the casts to fp8; 0: none
  std::int64_t norms_every = 0;     // steps between norms of every tensor; 0: none
  std::int64_t router_every = 100;  // steps between loads of every expert; 0: none
  std::vector<std::string> sinks = {"console", "jsonl", "tensorboard"};
  bool operator==(const Log&) const = default;
};

struct Parallel {
  std::int64_t ranks = 0;        // of the run; 0: as many as are started
  std::string mode = "auto";     // auto | ddp | zero1 | fsdp: how ranks share the state
  std::string wire = "fp32";     // fp32 | bf16: type of gradients between ranks
  std::int64_t sequence = 1;     // ranks that share every row
  std::int64_t shards = 0;       // ranks that share out one copy of the state; 0: all
  std::int64_t timeout = 600;    // seconds without progress after which a run on several ranks ends
  std::string network = "auto";  // between machines (perf/cards.h); what "auto" chooses goes by it
  bool operator==(const Parallel&) const = default;
};

struct Config {
  std::string preset;  // the shipped configuration it started from
  Model model;
  Data data;
  Train train;
  Optim optim;
  Precision precision;
  Kernels kernels;
  Memory memory;
  Checkpoint checkpoint;
  Guard guard;
  Parallel parallel;
  Log log;
  Origins origins;  // where each key was set
  bool operator==(const Config&) const = default;
};

}  // namespace redline::config
