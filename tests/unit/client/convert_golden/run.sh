#!/bin/bash
# Two nodes of eight GPUs, with DeepSpeed under accelerate.
export TOKENIZERS_PARALLELISM=false
NODES=2
accelerate launch \
  --num_machines $NODES --num_processes $((NODES * 8)) --machine_rank ${RANK:-0} \
  --mixed_precision bf16 --main_process_port 29500 \
  finetune.py --model meta/llama --epochs 1
