whatif llama-70b-96 search.strategy=manual plan={"llm":{"tp":8,"pp":4,"dp":3}} --no-runs -j 1 --sample 4 --seed 3 --vary train.global_batch=48..192+24 --vary cluster.nic_efficiency=0.5..1.0  --json
