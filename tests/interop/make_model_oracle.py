#!/usr/bin/env python3
"""Writes tests/fixtures/llama-biases: a LLaMA with every bias that it may have, and yarn's range in parts of pairs.

Usage: make_model_oracle.py      (torch, transformers and safetensors must be there)

docs/formats.md says what such a case holds.
"""
import os
import sys

import torch
import transformers
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "../fixtures/llama-biases")
sys.path.insert(0, os.path.join(HERE, "../../src/infer/check_case"))
from make_case import oracle_of


def main():
    torch.manual_seed(5)
    rope = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 3.0, "original_max_position_embeddings": 32,
            "beta_fast": 4.0, "beta_slow": 1.0, "truncate": False}
    config = transformers.LlamaConfig(
        hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
        vocab_size=211, max_position_embeddings=96, attention_bias=True, mlp_bias=True, rope_parameters=rope,
        bos_token_id=None, eos_token_id=1, initializer_range=0.1)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases, which begin as ones and zeros
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(OUT)
    documents = [torch.randint(0, config.vocab_size, (1, n)) for n in (53, 2, 71, 17)]
    save_file(oracle_of(model, documents), os.path.join(OUT, "oracle.safetensors"))


if __name__ == "__main__":
    main()
