simulate --no-runs --json mllm-nano-local
