simulate --no-runs -n 3 mllm-nano-local simulate.jitter=0.05 simulate.seed=7
