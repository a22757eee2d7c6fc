// "Did you mean": the nearest of a list of names, the names and values that keys and sections have in the trainers that
// people come from (Hugging Face, nanoGPT, llm.c, Lightning, Megatron, MaxText, torchtitan, Transformer Engine,
// DeepSpeed), and the sentence about a key that is not known here. docs/coming_from.md shows the tables to people.
#include <algorithm>
#include <cctype>
#include <limits>
#include <span>
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
    {"model.family", " architecture arch model_type model_name decoder_block "},
    {"model.init_from",
     " pretrained model_name_or_path from_pretrained init_checkpoint load_from load_parameters_path initial_load_path "
     "init_from "},
    {"model.layers",
     " num_layers n_layers n_layer num_hidden_layers depth n_blocks base_num_decoder_layers num_decoder_layers "},
    {"model.hidden",
     " hidden_size n_embd d_model dim embed_dim embedding_dim embedding_size hidden_dim width base_emb_dim emb_dim "},
    {"model.heads", " num_heads n_heads n_head num_attention_heads base_num_query_heads num_query_heads "},
    {"model.kv_heads", " num_kv_heads n_kv_heads n_kv_head num_key_value_heads num_query_groups base_num_kv_heads "},
    {"model.head_dim", " head_size d_head kv_channels "},
    {"model.ffn",
     " intermediate_size ffn_hidden_size ffn_size ffn_dim d_ff n_inner mlp_dim mlp_hidden_size base_mlp_dim "},
    {"model.experts", " num_experts num_local_experts n_experts n_routed_experts num_moe_experts moe_num_experts "},
    {"model.experts_per_token",
     " num_experts_per_tok num_experts_per_token moe_top_k moe_router_topk moe_topk top_k n_activated_experts "},
    {"model.expert_ffn",
     " moe_intermediate_size moe_ffn_hidden_size base_moe_mlp_dim moe_mlp_dim moe_inter_dim moe_hidden_dim "},
    {"model.norm_topk", " norm_topk_prob norm_topk_weights route_norm "},
    {"model.dense_layers",
     " mlp_only_layers decoder_sparse_step moe_layer_freq first_k_dense_replace n_dense_layers "
     "first_num_dense_layers "},
    {"model.router_aux",
     " router_aux_loss_coef moe_aux_loss_coeff load_balance_loss_weight load_balance_coeff aux_loss_coef "
     "moe_loss_weight "},
    {"model.router_z_loss", " router_z_loss_coef moe_z_loss_coeff moe_zloss_weight "},
    {"model.vocab", " vocab_size vocabulary_size n_vocab padded_vocab_size "},
    {"model.tied",
     " tie_word_embeddings tie_embeddings tie_weights weight_tying logits_via_embedding enable_weight_tying "
     "share_embeddings "},
    {"model.pad_token", " pad_token_id pad_id "},
    {"model.window", " sliding_window window_size sliding_window_size attention_window "},
    {"model.rope_theta", " rope_base rotary_base rope_freq_base rope_max_timescale "},
    {"model.rope_local_theta", " rope_local_base_freq "},
    {"model.rope_layers", " no_rope_layers "},
    {"model.max_positions", " max_position_embeddings n_positions "},
    {"model.norm_eps",
     " rms_norm_eps layer_norm_eps layer_norm_epsilon layernorm_epsilon norm_epsilon normalization_layer_epsilon "},
    {"model.dropout", " hidden_dropout resid_pdrop attention_dropout dropout_rate enable_dropout "},
    {"model.init_std", " initializer_range init_method_std "},
    {"data.train",
     " dataset dataset_name dataset_path data_path data_dir train_data train_file train_files input_bin "
     "grain_train_files hf_train_files train_split data_root "},
    {"data.weights", " data_weights mixture_weights dataset_weights train_weights blend mixing_weights "},
    {"data.eval",
     " val validation val_data eval_data eval_dataset validation_file val_file input_val_bin grain_eval_files "
     "hf_eval_files "},
    {"data.tokenizer",
     " tokenizer_name tokenizer_path tokenizer_model tokenizer_file tokenizer_name_or_path hf_assets_path "},
    {"data.text_field", " text_column text_key content_field json_keys dataset_text_field "},
    {"data.bos", " add_bos_token add_bos prepend_bos add_special_tokens "},
    {"data.workers", " num_workers dataloader_num_workers n_workers grain_worker_count use_dataloader worker_count "},
    {"data.prefetch",
     " prefetch_factor dataloader_prefetch_factor grain_per_worker_buffer_size per_worker_buffer_size "},
    {"data.separator", " document_separator "},
    {"train.batch_size",
     " per_device_train_batch_size per_device_batch_size micro_batch_size train_batch_size global_batch_size "
     "device_batch_size batch bs local_batch_size total_batch_size train_micro_batch_size_per_gpu "},
    {"train.seq_len",
     " max_length block_size context_length context_size context_window sequence_length seq_length max_seq_len "
     "max_seq_length ctx_len n_ctx model_max_length seqlen max_target_length crop_size "},
    {"train.accumulate",
     " gradient_accumulation_steps gradient_accumulation grad_accumulation_steps accumulate_grad_batches grad_accum "
     "grad_accum_steps accumulation_steps accum_steps "},
    {"train.max_steps",
     " steps num_steps n_steps max_iters train_iters num_iterations iterations iters total_steps train_steps "
     "max_train_steps num_training_steps training_steps learning_rate_schedule_steps lr_decay_iters "},
    {"train.epochs", " epochs num_epochs n_epochs num_train_epochs max_epochs num_epoch "},
    {"train.max_tokens", " total_tokens num_tokens train_tokens tokens token_budget "},
    {"train.max_hours", " max_time max_train_time time_limit max_train_hours exit_duration_in_mins "},
    {"train.patience", " early_stopping early_stopping_patience early_stop patience "},
    {"train.target_loss", " target_val_loss stopping_threshold "},
    {"train.seed", " seed random_seed manual_seed init_weights_seed "},
    {"train.eval_every",
     " eval_interval eval_steps evaluation_steps eval_frequency val_every val_interval val_check_interval "
     "val_loss_every eval_strategy evaluation_strategy "},
    {"train.eval_batches", " eval_iters val_batches limit_val_batches val_max_steps "},
    {"train.sample_every", " generate_every sample_interval genmodel_every "},
    {"train.recompute",
     " gradient_checkpointing activation_checkpointing grad_checkpointing recompute_granularity remat_policy "
     "activation_checkpoint.mode ac_mode recompute_activations "},
    {"optim.lr", " learning_rate base_lr max_lr peak_lr warmup_max_lr optimizer.params.lr "},
    {"optim.min_lr",
     " min_learning_rate lr_min eta_min learning_rate_min cosine_learning_rate_final_fraction final_learning_rate_frac "
     "learning_rate_final_fraction min_lr_factor lr_min_ratio "},
    {"optim.warmup_steps",
     " warmup num_warmup_steps warmup_iters warmup_iterations warmup_ratio lr_warmup_iters "
     "warmup_num_steps "},
    {"optim.schedule",
     " scheduler lr_scheduler lr_schedule lr_scheduler_type scheduler_type lr_decay_style decay_lr decay_type "
     "lr_schedule_type scheduler.type "},
    {"optim.weight_decay", " wd l2 adam_weight_decay "},
    {"optim.beta1", " adam_beta1 beta_1 betas adam_betas adam_b1 "},
    {"optim.beta2", " adam_beta2 beta_2 adam_b2 "},
    {"optim.eps", " adam_epsilon adam_eps epsilon "},
    {"optim.clip",
     " max_grad_norm grad_clip gradient_clip_val gradient_clipping clip_grad clip_grad_norm grad_norm_clip max_norm "
     "gradient_clipping_threshold "},
    {"precision.matmul",
     " dtype torch_dtype bf16 fp16 precision mixed_precision amp use_fp8 fp8_autocast quantization allow_tf32 "
     "float8 enable_fp8 fp8_format weight_dtype tf32 enable_tf32 override_enable_tf32 float32_matmul_precision "
     "bf16.enabled fp16.enabled "},
    {"checkpoint.every",
     " save_every save_steps save_interval save_strategy checkpoint_every checkpoint_interval checkpoint_steps "
     "ckpt_every "
     "save_freq checkpoint_period checkpoint.interval enable_checkpointing "},
    {"checkpoint.minutes", " save_minutes save_every_minutes checkpoint_minutes "},
    {"checkpoint.keep",
     " save_total_limit keep_last keep_last_n max_checkpoints num_to_keep keep_latest_k checkpoints_keep "
     "max_num_checkpoints_to_keep "},
    {"log.every",
     " logging_steps log_interval log_every log_steps print_every log_freq log_period "
     "steps_per_print "},
    {"log.sinks",
     " report_to loggers logger wandb tensorboard wandb_log enable_tensorboard enable_wandb "
     "tensorboard.enabled wandb.enabled "},
    {"model.qk_norm", " use_qk_norm qk_layernorm "},
    {"data.packing", " packing pack_sequences packed_sequences pack_dataset "},
    {"data.max_segments", " max_segments_per_seq "},
    {"data.ram_mib", " grain_ram_budget_mb "},
    {"data.debug", " grain_debug_mode grain_visualization_dir "},
    {"data.shuffle", " enable_data_shuffling "},
    {"data.shuffle_buffer", " shuffle_buffer_size buffer_size "},
    {"data.seed", " data_shuffle_seed "},
    {"train.sample_tokens", " gent genmodel_tokens "},
    {"optim.name", " opt_type optimizer_type optimizer.name optimizer.type "},
    {"optim.warmup_fraction", " warmup_steps_fraction "},
    {"optim.decay_fraction", " decay_ratio "},
    {"optim.moments", " use_8bit_optim use_8bit_adam optim_bits adam_8bit state_precision "},
    {"kernels.attention",
     " attention attention_backend attn_implementation attn_backend use_flash_attention use_flash_attn flash_attention "
     "enable_flash_sdp attention_type "},
    {"kernels.graphs", " use_cuda_graphs cuda_graphs enable_cuda_graph use_cudagraph "},
    {"kernels.tuning",
     " compile torch_compile compile_mode compile.enable torch_compile_mode max_autotune use_compile "},
    {"kernels.logits_rows", " chunked_loss num_vocab_tiling loss_chunks "},
    {"kernels.deterministic", " use_deterministic_algorithms deterministic_mode "},
    {"parallel.mode",
     " use_zero1 use_fsdp zero_stage fsdp sharding_strategy ici_fsdp_parallelism ici_data_parallelism "
     "dcn_data_parallelism use_distributed_optimizer zero_optimization zero_optimization.stage "},
    {"parallel.shards", " data_parallel_shard_degree data_parallel_replicate_degree hybrid_shard_size "},
    {"parallel.wire", " reduce_dtype grad_reduce_dtype mixed_precision_reduce communication_data_type "},
    {"parallel.sequence",
     " context_parallel_degree context_parallel_size sequence_parallel_size ulysses_sequence_parallel_size "
     "ulysses_degree ici_context_parallelism "},
    {"parallel.timeout", " init_timeout_seconds train_timeout_seconds distributed_timeout_minutes "},
    {"memory.fit",
     " cpu_offload enable_cpu_offload offload_optimizer offload_optimizer_states offload_param optimizer_offload "
     "optimizer_cpu_offload offload_master offload_residual offload_activations optimizer_memory_host_offload "
     "parameter_memory_host_offload activation_offload zero_optimization.offload_optimizer.device "
     "zero_optimization.offload_param.device "},
    {"memory.limit",
     " xla_python_client_mem_fraction gpu_memory_fraction per_process_gpu_memory_fraction gpu_memory_limit "},
    {"guard.spike", " skip_update_gradz skip_update_lossz "},
    {"checkpoint.keep_every", " major_checkpoint_every "},
    {"--out", " output_dir out_dir out save_dir run_dir output run_name log_dir base_output_directory dump_folder "},
    {"--resume", " resume resume_from_checkpoint resume_from "},
    {"--device", " device accelerator "},
};

constexpr Names kSections[] = {
    {"model", " architecture network transformer "},
    {"data", " dataset datasets dataloader data_loader tokenizer "},
    {"train", " activation_checkpoint training trainer training_args training_arguments trainingarguments run "},
    {"optim", " optimizer optimiser optimization scheduler lr_scheduler adam adamw "},
    {"precision", " float8 quantize fp8 dtype amp "},
    {"checkpoint", " checkpoints checkpointing saving save ckpt "},
    {"parallel", " parallelism distributed comm fsdp ddp "},
    {"kernels", " compile kernel attention "},
    {"log", " metrics logging logger wandb tensorboard "},
};

// What sets here what a key of another trainer sets there, for the values that mean one thing. Values in small letters.
constexpr Elsewhere kSettings[] = {
    {"use_fp8", "true", "precision.matmul=fp8"},
    {"use_fp8", "false", "precision.matmul=bf16"},
    {"fp8", "true", "precision.matmul=fp8"},
    {"fp8_autocast", "true", "precision.matmul=fp8"},
    {"fp8_format", "hybrid", "precision.matmul=fp8"},
    {"float8_dynamic_activation_float8_weight", "true", "precision.matmul=fp8"},
    {"quantization", "fp8", "precision.matmul=fp8"},
    {"allow_tf32", "true", "precision.matmul=tf32"},
    {"allow_tf32", "false", "precision.matmul=fp32"},
    {"tf32", "true", "precision.matmul=tf32"},
    {"tf32", "false", "precision.matmul=fp32"},
    {"override_enable_tf32", "1", "precision.matmul=tf32"},
    {"override_enable_tf32", "0", "precision.matmul=fp32"},
    {"float32_matmul_precision", "highest", "precision.matmul=fp32"},
    {"float32_matmul_precision", "high", "precision.matmul=tf32"},
    {"bf16.enabled", "true", "precision.matmul=bf16"},
    {"bf16", "true", "precision.matmul=bf16"},
    {"dtype", "bfloat16", "precision.matmul=bf16"},
    {"dtype", "float32", "precision.matmul=fp32"},
    {"compile", "true", "kernels.tuning=on"},
    {"compile", "false", "kernels.tuning=off"},
    {"compile.enable", "true", "kernels.tuning=on"},
    {"compile_mode", "default", "kernels.tuning=on"},
    {"compile_mode", "reduce-overhead", "kernels.graphs=auto"},
    {"compile_mode", "max-autotune", "kernels.tuning=max"},
    {"torch_compile_mode", "max-autotune", "kernels.tuning=max"},
    {"attention_backend", "flash_attn_3", "kernels.attention=auto"},
    {"attention_backend", "flash_attn_2", "kernels.attention=flash"},
    {"attention_backend", "sdpa", "kernels.attention=cudnn"},
    {"attention_backend", "manual", "kernels.attention=reference"},
    {"attention", "cudnn_flash_te", "kernels.attention=cudnn"},
    {"attention", "flash", "kernels.attention=flash"},
    {"attention", "autoselected", "kernels.attention=auto"},
    {"attention", "dot_product", "kernels.attention=reference"},
    {"attn_implementation", "flash_attention_2", "kernels.attention=flash"},
    {"attn_implementation", "sdpa", "kernels.attention=cudnn"},
    {"attn_implementation", "eager", "kernels.attention=reference"},
    {"use_cuda_graphs", "true", "kernels.graphs=auto"},
    {"use_cuda_graphs", "false", "kernels.graphs=off"},
    {"use_dataloader", "true", "data.workers=-1"},
    {"use_dataloader", "false", "data.workers=0"},
    {"use_zero1", "true", "parallel.mode=zero1"},
    {"use_zero1", "false", "parallel.mode=ddp"},
    {"use_fsdp", "true", "parallel.mode=fsdp"},
    {"use_fsdp", "false", "parallel.mode=ddp"},
    {"zero_stage", "0", "parallel.mode=ddp"},
    {"zero_stage", "1", "parallel.mode=zero1"},
    {"zero_stage", "3", "parallel.mode=fsdp"},
    {"zero_optimization.stage", "0", "parallel.mode=ddp"},
    {"zero_optimization.stage", "1", "parallel.mode=zero1"},
    {"zero_optimization.stage", "3", "parallel.mode=fsdp"},
    {"packing", "true", "data.packing=pack"},
    {"packing", "false", "data.packing=pad"},
    {"grain_debug_mode", "true", "data.debug=true"},
    {"remat_policy", "minimal", "train.recompute=mlp"},
    {"remat_policy", "full", "train.recompute=block"},
    {"gradient_checkpointing", "true", "train.recompute=block"},
    {"gradient_checkpointing", "false", "train.recompute=none"},
    {"activation_checkpoint.mode", "none", "train.recompute=none"},
    {"activation_checkpoint.mode", "selective", "train.recompute=mlp"},
    {"activation_checkpoint.mode", "full", "train.recompute=block"},
    {"use_8bit_optim", "true", "optim.moments=8bit"},
    {"optim_bits", "8", "optim.moments=8bit"},
    {"decay_lr", "false", "optim.schedule=constant"},
    {"decay_lr", "true", "optim.schedule=cosine"},
    {"opt_type", "adamw", "optim.name=adamw"},
    {"opt_type", "muon", "optim.name=muon"},
    {"enable_dropout", "false", "model.dropout=0"},
    {"init_from", "scratch", "model.init_from=\"\""},
};

// Other trainers' keys that have nothing to set here, with the reason.
constexpr Names kWithoutKey[] = {
    {"the update is one pass over flat arrays, always", " fused fused_adamw use_fused_adamw foreach implementation "},
    {"queries, keys and values are one product, as are gate and up, always",
     " fused_qkv fuse_qkv use_fused_qkv fuse_qkv_params fused_mlp gelu_fusion "},
    {"gradients of weights are summed inside their products, always", " fuse_wgrad_accumulation "},
    {"weights have fp32 masters, always", " use_master_weights master_weights fp32_residual_connection "},
    {"scales follow the largest of the last 16 steps (docs/fp8.md)",
     " amax_history_len amax_compute_algo margin fp8_recipe recipe_name fp8_margin fp8_interval "},
    {"attention takes bf16 in a run in fp8 (docs/fp8.md)", " fp8_dpa fp8_attention fp8_mha fp8_dot_product_attention "},
    {"nothing is traced or compiled: the step is lowered once when a run begins", " fullgraph use_reentrant donate "},
    {"memory is planned before the first step, and nothing is allocated later",
     " expandable_segments pytorch_cuda_alloc_conf empty_cache "},
    {"batches travel from pinned memory beside the step, and workers live as long as the run, always",
     " pin_memory non_blocking persistent_workers drop_last "},
    {"there is no fp16, which needs its losses scaled: precision.matmul=bf16 has the range of fp32",
     " loss_scale initial_scale_power loss_scale_window hysteresis min_loss_scale "},
    {"what the card does stands in metrics.jsonl at every step", " log_gpu_every "},
    {"work that can overlap is put beside other work when the step is lowered",
     " overlap_comm contiguous_gradients reduce_bucket_size allgather_bucket_size allgather_partitions reduce_scatter "
     "xla_gpu_enable_latency_hiding_scheduler xla_gpu_enable_async_collectives "
     "xla_gpu_enable_highest_priority_async_stream xla_gpu_enable_triton_softmax_fusion "},
    {"the fastest algorithm of each product is measured (kernels.tuning)",
     " xla_gpu_triton_gemm_any xla_gpu_pgle_profile_file_or_directory_path xla_gpu_autotune_level "
     "xla_gpu_enable_triton_gemm xla_flags "},
    {"ranks share out data, weights and moments (parallel.mode); there is no other parallelism",
     " tensor_parallel_degree pipeline_parallel_degree expert_parallel_degree expert_model_parallel_size "
     "ici_expert_parallelism "
     "tensor_model_parallel_size pipeline_model_parallel_size ici_tensor_parallelism ici_pipeline_parallelism "
     "enable_async_tensor_parallel "},
    {"no token is dropped, so that experts need no capacity",
     " capacity_factor expert_capacity moe_capacity_factor moe_expert_capacity_factor moe_token_drop_policy "
     "moe_pad_expert_input_to_capacity "},
    {"products of experts are grouped, always",
     " moe_grouped_gemm use_grouped_mm use_grouped_gemm moe_permute_fusion megablox sparse_matmul "},
    {"routers have no noise", " router_jitter_noise moe_input_jitter_eps "},
    {"no family here has experts that every token takes",
     " n_shared_experts num_shared_experts moe_shared_expert_intermediate_size shared_experts "},
    {"the family of a model says which of its linears have a bias", " bias use_bias add_bias_linear "},
    {"what computes, and what ranks talk through, follows from the device (--device)", " backend ddp_backend "},
    {"ranks are started by `redline launch -n N -- train ...`, torchrun, srun or mpirun",
     " nproc_per_node nnodes standalone num_gpus num_nodes "},
    {"the time of every node is shown by `redline profile`",
     " profiler enable_profiling profile_freq profile_cleanly skip_first_n_steps_for_profiler nsys_profile "
     "wall_clock_breakdown flops_profiler.enabled "},
    {"questions with choices are answered by `redline eval --choices`", " hellaswag_eval run_hellaswag "},
    {"held-out loss of a checkpoint is computed by `redline eval`", " eval_only "},
};

std::string_view last_part(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

std::string as_table_has_it(std::string_view word) {
  std::string small;
  for (const char c : word) small += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return small;
}

// The row with this word; first the whole of it, as in "activation_checkpoint.mode", then what is behind its last dot.
template <std::size_t n>
std::string find(const Names (&table)[n], std::string_view name) {
  std::string word = as_table_has_it(name);
  std::ranges::replace(word, '-', '_');
  for (const std::string& wanted : {fmt::format(" {} ", word), fmt::format(" {} ", last_part(word))}) {
    const auto it =
        std::ranges::find_if(table, [&](const Names& row) { return row.elsewhere.find(wanted) != wanted.npos; });
    if (it != std::end(table)) return std::string(it->here);
  }
  return {};
}

}  // namespace

std::span<const Elsewhere> settings_elsewhere() { return kSettings; }

std::string key_in_other_trainers(std::string_view name) { return find(kKeys, name); }
std::string section_in_other_trainers(std::string_view name) { return find(kSections, name); }

std::string advice_from_other_trainers(std::string_view name, std::string_view value) {
  std::string word = as_table_has_it(name), given = as_table_has_it(value);
  std::ranges::replace(word, '-', '_');
  std::erase_if(given, [](char c) { return c == '"' || c == '\''; });
  const auto row = std::ranges::find_if(
      kSettings, [&](const Elsewhere& e) { return (e.key == word || e.key == last_part(word)) && e.value == given; });
  if (row != std::end(kSettings)) return fmt::format("here it is '{}'", row->here);
  if (const std::string reason = find(kWithoutKey, name); !reason.empty())
    return fmt::format("there is nothing to set here: {}", reason);
  return {};
}

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

std::string unknown_key(std::string_view name, std::string_view value) {
  if (const std::string advice = advice_from_other_trainers(name, value); !advice.empty())
    return fmt::format("unknown key '{}'; {}", name, advice);
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
