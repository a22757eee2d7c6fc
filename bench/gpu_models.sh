#!/usr/bin/env bash
# Trains the five models on the card, full rows of random tokens, a few dozen steps each, and prints one row a model: the
# median step after the first five, beside what `redline plan` expects and what nvidia-smi says of the card's memory. PEER
# names a PyTorch program that takes --runs MODEL:BATCH:bf16:default:cudnn:CHUNKS; it then runs the same model right after,
# on the same card.
#   bench/gpu_models.sh [MODEL:BATCH ...]      REDLINE=build/redline SECONDS_EACH=25
set -uo pipefail
cd "$(dirname "$0")/.."
redline=${REDLINE:-build/redline}
runs=("$@")
[[ ${#runs[@]} -gt 0 ]] || runs=(ping-95m:128 gqa-180m:64 cs336-350m:32 llama-1.36b:24 qwen3-1.8b:8)
declare -A vocab=([ping-95m]=267 [gqa-180m]=32768 [cs336-350m]=50304 [llama-1.36b]=32000 [qwen3-1.8b]=151936)
for run in "${runs[@]}"; do
  model=${run%%:*} batch=${run##*:}
  out=$(mktemp -d)
  begin=$(date +%s.%N)
  keys=(train.batch_size="$batch" train.accumulate=1 train.max_steps=100000 train.eval_every=0 checkpoint.every=0
    model.dropout=0 data.train="random:${vocab[$model]}")
  # Ended by force: a save at the end would measure the disk.
  timeout -s KILL "${SECONDS_EACH:-25}" "$redline" train --preset "$model" --device cuda --out "$out/run" \
    "${keys[@]}" >"$out/log" 2>&1 &
  run_id=$!
  sleep $((${SECONDS_EACH:-25} - 3))
  nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits >"$out/card_mib" 2>/dev/null
  wait "$run_id"
  "$redline" plan --preset "$model" "${keys[@]}" --json >"$out/plan.json"
  python3 - "$model" "$batch" "$out" "$begin" <<'PY'
import json, statistics, sys
model, batch, out, begin = sys.argv[1:]
try: rows = [json.loads(line) for line in open(f"{out}/run/metrics.jsonl")]
except OSError: rows = []
if len(rows) < 8: sys.exit(f"{model}: {len(rows)} steps only\n" + open(f"{out}/log").read()[-600:])
late = rows[5:]
median = lambda key: statistics.median(r[key] for r in late)
plan = json.load(open(f"{out}/plan.json"))
card = open(f"{out}/card_mib").read().split()
print(json.dumps(dict(model=model, batch=int(batch), steps=len(rows), step_ms=round(median("step_ms"), 2),
    ktok_s=round(median("tokens_per_s") / 1e3, 1), mfu=round(100 * median("mfu"), 1), mfu_palm=round(100 * median("mfu_palm"), 1),
    first_step_s=round(rows[0]["time"] - float(begin), 1), memory_gib=round(rows[-1]["memory_gib"], 1), loss=round(rows[-1]["loss"], 3),
    plan_step_ms=round(plan["expected"]["step_ms"], 2), plan_mfu=round(100 * plan["expected"]["mfu"], 1),
    plan_arena_gib=round(plan["arena_bytes"] / 2**30, 1), plan_total_gib=round(plan["memory"]["total"] / 2**30, 2),
    card_gib=round(int(card[0]) / 1024, 2) if card else None)))
PY
  rm -rf "$out"
  if [[ -n "${PEER:-}" ]]; then python3 "$PEER" --runs "$model:$batch:bf16:default:cudnn:8" --steps 10 2>/dev/null; fi
done
