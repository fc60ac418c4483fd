show mllm-nano-local train.global_batch=16 cluster.nodes=1
