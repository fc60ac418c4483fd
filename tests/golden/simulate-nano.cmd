simulate --no-runs mllm-nano-local
