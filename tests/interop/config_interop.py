#!/usr/bin/env python3
"""Attacks the reading of config.json: every key that changes what a model computes must be honoured or refused.

Usage: config_interop.py REDLINE WORK_FOLDER [CASE ...]

A case of tests/fixtures gets a config.json with one change, in the spelling of transformers 5 and in the published one
of before, and with some pairs of changes, drawn at random. transformers computes logits from it, and `redline verify`
must agree with them, or refuse the folder with exit status 2. Where transformers itself refuses, redline may do either.
torch is not installed: without it the test is skipped (exit 77). What was silent is printed; exit status 1.
WORK_FOLDER/refused.txt has the sentences of refusals.
"""
import copy
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from packages import enter_environment, skip

FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../fixtures")
CASES = ["llama3-gqa", "qwen3-gqa", "qwen2-gqa", "mistral-window", "smollm3-nope", "olmo2-gqa", "olmo3-window",
         "gemma3-text", "llama-biases", "olmoe", "qwen3-moe", "qwen3-moe-dense", "mixtral"]
TOKENS, PAIRS = 60, 30
GONE = object()
YARN = {"factor": 4.0, "original_max_position_embeddings": 32}
PLAIN = {"rope_type": "default", "rope_theta": 77.0}
CHANGES = [
    ("attention_bias", True), ("mlp_bias", True), ("hidden_act", "gelu"), ("hidden_activation", "silu"),
    ("rms_norm_eps", 0.1), ("rms_norm_eps", None), ("layer_norm_eps", 0.1), ("rope_theta", 500.0),
    ("rope_scaling", {"rope_type": "linear", "factor": 4.0}), ("rope_scaling", {"type": "linear", "factor": 4.0}),
    ("rope_scaling", {"type": "dynamic", "factor": 4.0}), ("rope_scaling", {"rope_type": "yarn", **YARN}),
    ("rope_scaling", {"type": "yarn", **YARN}), ("rope_scaling", {"rope_type": "yarn", "factor": 4.0}),
    ("rope_scaling", {"rope_type": "yarn", **YARN, "attention_factor": 0.5}), ("rope_scaling", {"factor": 4.0}),
    ("rope_scaling", {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **YARN}),
    ("rope_scaling", {"rope_type": "longrope", "short_factor": [1] * 8, "long_factor": [2] * 8}),
    ("rope_parameters", PLAIN), ("rope_parameters", {"rope_type": "yarn", "rope_theta": 77.0, **YARN, "beta_fast": 8}),
    ("rope_parameters", {**PLAIN, "partial_rotary_factor": 0.5}), ("rope_parameters", None),
    ("rope_parameters", {"full_attention": PLAIN, "sliding_attention": {**PLAIN, "rope_theta": 99.0}}),
    ("rope_local_base_freq", 50.0), ("partial_rotary_factor", 0.5), ("rope_interleaved", True),
    ("sliding_window", 7), ("sliding_window", None), ("sliding_window", 0), ("use_sliding_window", True),
    ("use_sliding_window", False), ("max_window_layers", 1), ("sliding_window_pattern", 2),
    ("_sliding_window_pattern", 2), ("layer_types", ["full_attention"]), ("layer_types", ["sliding_attention"]),
    ("layer_types", ["full_attention", "sliding_attention"]), ("layer_types", ["chunked_attention"]),
    ("layer_types", GONE), ("no_rope_layers", [0]), ("no_rope_layers", [1]), ("no_rope_layer_interval", 2),
    ("attn_logit_softcapping", 20.0), ("final_logit_softcapping", 5.0), ("logit_scale", 0.5),
    ("query_pre_attn_scalar", 7), ("query_pre_attn_scalar", GONE), ("use_bidirectional_attention", True),
    ("is_causal", False), ("embedding_multiplier", 12.0), ("residual_multiplier", 0.2), ("clip_qkv", 0.01),
    ("use_qk_norm", True), ("tie_word_embeddings", GONE), ("num_key_value_heads", GONE), ("num_key_value_heads", 1),
    ("num_attention_heads", 2), ("head_dim", GONE), ("head_dim", 8), ("num_hidden_layers", 1), ("num_experts", 4),
    ("model_type", "llama"), ("architectures", ["LlamaForCausalLM"]), ("architectures", GONE), ("is_decoder", False),
    ("quantization_config", {"quant_method": "fp8"}), ("max_position_embeddings", 16), ("attention_dropout", 0.5),
    ("pad_token_id", 0), ("vocab_size", 64), ("intermediate_size", GONE), ("dtype", "bfloat16"),
    ("head_dim", None), ("hidden_act", None), ("hidden_act", "gelu_pytorch_tanh"), ("num_key_value_heads", None),
    ("tie_word_embeddings", True), ("tie_word_embeddings", False), ("rope_theta", 500), ("pretraining_tp", 2),
    ("rope_parameters", {"rope_theta": 77.0}), ("rope_parameters", {"rope_type": "linear", "rope_theta": 77.0,
                                                                   "factor": 3.0}),
    ("rope_parameters", {"full_attention": PLAIN}), ("rope_parameters", {"sliding_attention": PLAIN}),
    ("rope_scaling", {"rope_type": "yarn", **YARN, "mscale": 0.7, "mscale_all_dim": 1.2}),
    ("rope_scaling", {"rope_type": "yarn", **YARN, "truncate": False}), ("rope_scaling", PLAIN),
    ("rope_scaling", {"rope_type": "linear", "factor": 4.0, "rope_theta": 77.0}),
    ("rope_scaling", {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 32}),
    ("original_max_position_embeddings", 16), ("max_window_layers", 0), ("sliding_window_pattern", 1),
    ("no_rope_layers", GONE), ("logits_scaling", 8.0), ("attention_multiplier", 0.1), ("norm_eps", 0.1),
    ("num_experts", GONE), ("num_local_experts", GONE), ("num_local_experts", 3), ("num_experts", 3),
    ("num_experts_per_tok", 1), ("num_experts_per_tok", 3), ("num_experts_per_tok", GONE), ("norm_topk_prob", True),
    ("norm_topk_prob", False), ("norm_topk_prob", GONE), ("moe_intermediate_size", GONE), ("decoder_sparse_step", 2),
    ("decoder_sparse_step", 0), ("mlp_only_layers", [0]), ("mlp_only_layers", []), ("mlp_only_layers", GONE),
    ("router_jitter_noise", 0.5), ("router_aux_loss_coef", 7.0), ("output_router_logits", True),
    ("shared_expert_intermediate_size", 16), ("n_group", 2), ("scoring_func", "sigmoid"),
    ("routed_scaling_factor", 2.5), ("experts_implementation", "eager")]


def as_published(config):
    """In the spelling of transformers 4."""
    config = copy.deepcopy(config)
    rope = config.pop("rope_parameters", {})
    whole = rope.get("full_attention", rope)
    config["rope_theta"] = whole["rope_theta"]
    if "sliding_attention" in rope and config["model_type"] == "gemma3_text":
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
    if whole.get("rope_type", "default") != "default":
        config["rope_scaling"] = {key: value for key, value in whole.items() if key != "rope_theta"}
    config["torch_dtype"] = config.pop("dtype", "float32")
    return config


def changed(config, key, value):
    """None: there is nothing to change."""
    config = copy.deepcopy(config)
    if value is GONE:
        return config if config.pop(key, None) is not None else None
    if key in ("layer_types", "no_rope_layers"):
        layers = config["num_hidden_layers"]
        value = (value * layers)[:layers]
    config[key] = value
    return config


def said(key, value):
    return f"{key} = {'gone' if value is GONE else value}"


# Changes that most families do not refuse by themselves.
TELLING = [(key, value) for key, value in CHANGES if key.startswith(("rope_", "sliding_", "layer_types", "use_sliding",
                                                                    "max_", "num_experts", "norm_topk", "mlp_only",
                                                                    "no_rope", "head_dim", "original", "decoder"))]


class Attack:
    def __init__(self, program, folder):
        import torch
        import transformers
        transformers.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self.program, self.folder = program, os.path.join(folder, "case")
        self.torch, self.transformers = torch, transformers
        self.refused = open(os.path.join(folder, "refused.txt"), "w")
        self.counts = {"agrees": 0, "refused": 0, "silent": 0, "of neither": 0}

    def logits(self, tokens):
        """Of transformers, and the balance of its experts, if it has any; None: it does not take the folder."""
        try:
            model = self.transformers.AutoModelForCausalLM.from_pretrained(
                self.folder, dtype=self.torch.float32, attn_implementation="eager").eval()
            with self.torch.no_grad():
                routers = {"output_router_logits": True} if hasattr(model.config, "router_aux_loss_coef") else {}
                out = model(tokens[None].long(), use_cache=False, **routers)
                return out.logits[0].float().contiguous(), out.aux_loss.view(1) if routers else None
        except Exception:  # whatever it says
            return None, None

    def one(self, name, config, case, tokens):
        from safetensors.torch import save_file
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        with open(os.path.join(self.folder, "config.json"), "w") as file:
            json.dump(config, file)
        shutil.copy(os.path.join(case, "model.safetensors"), self.folder)
        logits, balance = self.logits(tokens)
        known = logits is not None
        if not known:
            logits = self.torch.zeros(len(tokens), config.get("vocab_size", 1))
        n = len(tokens)
        loss = self.torch.nn.functional.cross_entropy(logits[:-1], tokens[1:].long().clamp(max=logits.shape[1] - 1))
        oracle = {"tokens": tokens, "doc_offsets": self.torch.tensor([0, n], dtype=self.torch.int32),
                  "logits": logits, "loss": loss.view(1), "train_losses": loss.view(1).clone(),
                  "grad_norms": self.torch.ones(1)}
        if balance is not None:
            total = loss + config.get("router_aux_loss_coef", 0.0) * balance
            oracle |= {"aux.loss": balance, "aux.total": total}
        save_file(oracle, os.path.join(self.folder, "oracle.safetensors"))
        done = subprocess.run([self.program, "verify", self.folder, "--device", "cpu", "--precision", "fp32", "--json"],
                              capture_output=True, text=True)
        if done.returncode == 2:
            verdict = "of neither" if not known and "aux.loss" in done.stderr else "refused"
            self.refused.write(f"{name}: {done.stderr}")
            self.refused.flush()
        elif done.returncode not in (0, 1) or not done.stdout:
            raise SystemExit(f"{name}: redline verify ended with {done.returncode}: {done.stderr}")
        elif not known:
            verdict = "of neither"
        else:
            rows = json.loads(done.stdout)["tensors"]
            error = next(row["error"] for row in rows if row["name"] == "logits")
            verdict = "agrees" if error is not None and error < 1e-4 else "silent"
            if verdict == "silent":
                print(f"  FAIL {name}: transformers computes something else (logits are off by {error})", flush=True)
        self.counts[verdict] += 1

    def case(self, name):
        from safetensors.torch import load_file
        folder = os.path.join(FIXTURES, name)
        with open(os.path.join(folder, "config.json")) as file:
            config = json.load(file)
        tokens = load_file(os.path.join(folder, "oracle.safetensors"))["tokens"][:TOKENS].clone()
        for spelling, plain in (("transformers 5", config), ("published", as_published(config))):
            for key, value in [(None, None), *CHANGES]:
                mutated = plain if key is None else changed(plain, key, value)
                if mutated:
                    self.one(f"{name}, {spelling}, {said(key, value)}", mutated, folder, tokens)
            draw = random.Random(name)
            for _ in range(PAIRS):
                first, second = draw.sample(TELLING, 2)
                once = changed(plain, *first)
                twice = changed(once, *second) if once else None
                if twice:
                    self.one(f"{name}, {spelling}, {said(*first)}, {said(*second)}", twice, folder, tokens)


def main():
    program, folder, cases = os.path.abspath(sys.argv[1]), sys.argv[2], sys.argv[3:] or CASES
    if not importlib.util.find_spec("torch"):
        skip("torch is not there, without which transformers computes nothing")
    os.makedirs(folder, exist_ok=True)
    enter_environment(folder, ["transformers", "safetensors", "numpy"], system_packages=True)
    attack = Attack(program, folder)
    for case in cases:
        attack.case(case)
        print(f"  {case}: {attack.counts}", flush=True)
    return attack.counts["silent"] > 0 or attack.counts["agrees"] < 2 * len(cases)


if __name__ == "__main__":
    sys.exit(main())
