simulate --no-runs mllm-3b-entrain-64 search.dp=4 train.warmup=eager
