simulate --no-runs llama-70b-96 train.schedule=interleaved search.max_vpp=2
