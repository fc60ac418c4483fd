simulate --no-runs --print-program --lane -1 mllm-nano-local train.global_batch=4
