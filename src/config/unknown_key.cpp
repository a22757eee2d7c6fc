// "Did you mean": the nearest of a list of names, the names that keys and sections have in the trainers that people
// come from (Hugging Face, nanoGPT, Lightning, Megatron), and the sentence about a key that is not known here.
#include <algorithm>
#include <cctype>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/keys.h"
#include "config/load.h"

namespace redline::config {
namespace {

struct Names {
  std::string_view here, elsewhere;  // the latter with a space around each
};

constexpr Names kKeys[] = {
    {"model.family", " architecture arch model_type model_name "},
    {"model.init_from", " pretrained model_name_or_path from_pretrained init_checkpoint load_from "},
    {"model.layers", " num_layers n_layers n_layer num_hidden_layers depth n_blocks "},
    {"model.hidden", " hidden_size n_embd d_model dim embed_dim embedding_dim embedding_size hidden_dim width "},
    {"model.heads", " num_heads n_heads n_head num_attention_heads "},
    {"model.kv_heads", " num_kv_heads n_kv_heads n_kv_head num_key_value_heads num_query_groups "},
    {"model.head_dim", " head_size d_head kv_channels "},
    {"model.ffn", " intermediate_size ffn_hidden_size ffn_size ffn_dim d_ff n_inner mlp_dim mlp_hidden_size "},
    {"model.vocab", " vocab_size vocabulary_size n_vocab padded_vocab_size "},
    {"model.tied", " tie_word_embeddings tie_embeddings tie_weights weight_tying "},
    {"model.pad_token", " pad_token_id pad_id "},
    {"model.rope_theta", " rope_base rotary_base rope_freq_base "},
    {"model.max_positions", " max_position_embeddings n_positions "},
    {"model.norm_eps", " rms_norm_eps layer_norm_eps layer_norm_epsilon layernorm_epsilon norm_epsilon "},
    {"model.dropout", " hidden_dropout resid_pdrop attention_dropout dropout_rate "},
    {"model.init_std", " initializer_range init_method_std "},
    {"data.train",
     " dataset dataset_name dataset_path data_path data_dir train_data train_file train_files input_bin "},
    {"data.weights", " data_weights mixture_weights dataset_weights train_weights blend mixing_weights "},
    {"data.eval", " val validation val_data eval_data eval_dataset validation_file val_file input_val_bin "},
    {"data.tokenizer", " tokenizer_name tokenizer_path tokenizer_model tokenizer_file tokenizer_name_or_path "},
    {"data.text_field", " text_column text_key content_field json_keys dataset_text_field "},
    {"data.bos", " add_bos_token add_bos prepend_bos add_special_tokens "},
    {"data.workers", " num_workers dataloader_num_workers n_workers "},
    {"data.prefetch", " prefetch_factor dataloader_prefetch_factor "},
    {"data.separator", " document_separator "},
    {"train.batch_size",
     " per_device_train_batch_size per_device_batch_size micro_batch_size train_batch_size global_batch_size "
     "device_batch_size batch bs "},
    {"train.seq_len",
     " max_length block_size context_length context_size context_window sequence_length seq_length max_seq_len "
     "max_seq_length ctx_len n_ctx model_max_length seqlen "},
    {"train.accumulate",
     " gradient_accumulation_steps gradient_accumulation grad_accumulation_steps accumulate_grad_batches grad_accum "
     "grad_accum_steps accumulation_steps accum_steps "},
    {"train.max_steps",
     " steps num_steps n_steps max_iters train_iters num_iterations iterations iters total_steps train_steps "
     "max_train_steps num_training_steps training_steps "},
    {"train.epochs", " epochs num_epochs n_epochs num_train_epochs max_epochs "},
    {"train.max_tokens", " total_tokens num_tokens train_tokens tokens token_budget "},
    {"train.max_hours", " max_time max_train_time time_limit max_train_hours exit_duration_in_mins "},
    {"train.patience", " early_stopping early_stopping_patience early_stop patience "},
    {"train.target_loss", " target_val_loss stopping_threshold "},
    {"train.seed", " seed random_seed manual_seed "},
    {"train.eval_every",
     " eval_interval eval_steps evaluation_steps eval_frequency val_every val_interval val_check_interval "
     "val_loss_every eval_strategy evaluation_strategy "},
    {"train.eval_batches", " eval_iters val_batches limit_val_batches val_max_steps "},
    {"train.sample_every", " generate_every sample_interval genmodel_every "},
    {"train.recompute", " gradient_checkpointing activation_checkpointing grad_checkpointing recompute_granularity "},
    {"optim.lr", " learning_rate base_lr max_lr peak_lr "},
    {"optim.min_lr", " min_learning_rate lr_min eta_min learning_rate_min "},
    {"optim.warmup_steps", " warmup num_warmup_steps warmup_iters warmup_iterations warmup_ratio lr_warmup_iters "},
    {"optim.schedule", " scheduler lr_scheduler lr_schedule lr_scheduler_type scheduler_type lr_decay_style decay_lr "},
    {"optim.weight_decay", " wd l2 "},
    {"optim.beta1", " adam_beta1 beta_1 betas adam_betas "},
    {"optim.beta2", " adam_beta2 beta_2 "},
    {"optim.eps", " adam_epsilon adam_eps epsilon "},
    {"optim.clip",
     " max_grad_norm grad_clip gradient_clip_val gradient_clipping clip_grad clip_grad_norm grad_norm_clip max_norm "},
    {"precision.matmul", " dtype torch_dtype bf16 fp16 precision mixed_precision amp "},
    {"checkpoint.every",
     " save_every save_steps save_interval save_strategy checkpoint_every checkpoint_interval checkpoint_steps "
     "ckpt_every "
     "save_freq "},
    {"checkpoint.minutes", " save_minutes save_every_minutes checkpoint_minutes "},
    {"checkpoint.keep", " save_total_limit keep_last keep_last_n max_checkpoints num_to_keep "},
    {"log.every", " logging_steps log_interval log_every log_steps print_every "},
    {"log.sinks", " report_to loggers logger wandb tensorboard "},
    {"--out", " output_dir out_dir out save_dir run_dir output run_name log_dir "},
    {"--resume", " resume resume_from_checkpoint resume_from "},
    {"--device", " device accelerator "},
};

constexpr Names kSections[] = {
    {"model", " architecture network transformer "},
    {"data", " dataset datasets dataloader data_loader tokenizer "},
    {"train", " training trainer training_args training_arguments trainingarguments run "},
    {"optim", " optimizer optimiser optimization scheduler lr_scheduler adam adamw "},
    {"precision", " dtype amp "},
    {"checkpoint", " checkpoints checkpointing saving save ckpt "},
    {"log", " logging logger wandb tensorboard "},
};

template <std::size_t n>
std::string find(const Names (&table)[n], std::string_view name) {
  std::string word = " ";
  for (const char c : name.substr(name.rfind('.') + 1))
    word += c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  word += ' ';
  const auto it = std::ranges::find_if(table, [&](const Names& n_) { return n_.elsewhere.find(word) != word.npos; });
  return it == std::end(table) ? std::string() : std::string(it->here);
}

}  // namespace

std::string key_in_other_trainers(std::string_view name) { return find(kKeys, name); }
std::string section_in_other_trainers(std::string_view name) { return find(kSections, name); }

namespace {

// Insertions, deletions, substitutions and swaps of neighbours (people type "trian").
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

// More than a third of the letters wrong is another word.
std::size_t tolerance(std::string_view word) { return std::max<std::size_t>(2, word.size() / 3); }

std::string_view last_part(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& choices) {
  std::string best;
  std::size_t best_distance = std::numeric_limits<std::size_t>::max();
  if (word.size() > 200) return best;  // not a name that anybody mistyped
  for (const std::string& choice : choices) {
    const std::size_t d = edit_distance(word, choice);
    if (d < best_distance && d <= tolerance(word) && d < choice.size()) {
      best = choice;
      best_distance = d;
    }
  }
  return best;
}

std::string names_known(std::string_view word, std::string_view whose, const std::vector<std::string>& names) {
  const std::string guess = nearest(word, names);
  return fmt::format("{}the {} are {}", guess.empty() ? "" : fmt::format("did you mean '{}'? ", guess), whose,
                     fmt::join(names, ", "));
}

std::string unknown_key(std::string_view name) {
  if (const std::string here = key_in_other_trainers(name); !here.empty()) {
    const Key* key = find_key(here);
    const std::string unit = key && !key->unit.empty() ? fmt::format(", {}", key->unit) : "";
    return fmt::format("unknown key '{}'; here it is {}{}", name, here.starts_with('-') ? "the flag " : "",
                       key ? fmt::format("'{}' ({}{})", here, expected(*key), unit) : fmt::format("'{}'", here));
  }
  std::vector<std::string> names;
  std::string moved;  // the right name in the wrong section, or in none
  for (const Key& key : keys()) {
    names.emplace_back(key.name);
    if (moved.empty() && last_part(key.name) == last_part(name)) moved = key.name;
  }
  const std::string guess = moved.empty() ? nearest(name, names) : moved;
  if (guess.empty()) return fmt::format("unknown key '{}'; all keys stand in docs/config.md", name);
  return fmt::format("unknown key '{}'; did you mean '{}'?", name, guess);
}

}  // namespace redline::config
