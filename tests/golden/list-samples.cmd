list samples
