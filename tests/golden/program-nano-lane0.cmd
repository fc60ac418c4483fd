simulate --no-runs --print-program --lane 0 mllm-nano-local
