#!/usr/bin/env python3
"""Writes the case of `redline check` beside this file, as docs/formats.md describes cases: a model small enough to be
compiled in, with heads of 64, for which every attention on cards is built, two of them over one key, and documents of
several lengths. Weights are in bf16, and transformers computes in float64. The final parameters are left out: six steps
show in the losses.

Needs torch, transformers and safetensors.
"""
import os
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
LENGTHS, STEPS = [1, 2, 17, 40, 5], 6


def oracle_of(model, documents):
    """The tensors of oracle.safetensors, computed in float64. A document is [1, n]."""
    model = model.double()
    pairs = sum(d.shape[1] - 1 for d in documents)

    def forward():
        model.zero_grad()
        logits = [model(input_ids=ids, use_cache=False).logits[0] for ids in documents]
        loss = sum(torch.nn.functional.cross_entropy(out[:-1], ids[0, 1:], reduction="sum")
                   for out, ids in zip(logits, documents) if len(out) > 1) / pairs
        loss.backward()
        return torch.cat(logits).detach(), loss.detach()

    logits, loss = forward()
    tensors = {"tokens": torch.cat([d[0] for d in documents]).int(),
               "doc_offsets": torch.tensor([0] + [d.shape[1] for d in documents]).cumsum(0).int(),
               "logits": logits.float(), "loss": loss.float().reshape(1)}
    for name, parameter in model.named_parameters():
        tensors["grad." + name] = parameter.grad.float().clone().contiguous()
    groups = [{"params": [p for p in model.parameters() if (p.dim() == 2) == decays], "weight_decay": 0.1 * decays}
              for decays in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    losses, norms = [], []
    for _ in range(STEPS):
        losses.append(forward()[1])
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
    tensors["train_losses"], tensors["grad_norms"] = torch.stack(losses).float(), torch.stack(norms).float()
    for name, parameter in model.named_parameters():
        tensors["final." + name] = parameter.detach().float().contiguous()
    return tensors


def main():
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, head_dim=64,
                         num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
                         tie_word_embeddings=True, initializer_range=0.1, bos_token_id=None, eos_token_id=None,
                         pad_token_id=None)
    model = LlamaForCausalLM(config).float()
    weights = {name: parameter.detach().bfloat16() for name, parameter in model.named_parameters()}  # half the bytes
    model.load_state_dict(weights, strict=False)  # which rounds the parameters alone, and not the frequencies
    model.save_pretrained(HERE)
    save_file(weights, os.path.join(HERE, "model.safetensors"), {"format": "pt"})
    os.remove(os.path.join(HERE, "generation_config.json"))
    generator = torch.Generator().manual_seed(5)
    documents = [torch.randint(64, (1, n), generator=generator) for n in LENGTHS]
    tensors = {name: tensor for name, tensor in oracle_of(model, documents).items() if not name.startswith("final.")}
    save_file(tensors, os.path.join(HERE, "oracle.safetensors"))
    print(f"{sum(t.numel() for t in load_file(os.path.join(HERE, 'model.safetensors')).values())} parameters, "
          f"losses {[round(float(x), 4) for x in tensors['train_losses']]}")


if __name__ == "__main__":
    sys.exit(main())
