"""``cuda-captures inspect``: importing a program and showing what its kernels capture, compiled without a GPU."""
