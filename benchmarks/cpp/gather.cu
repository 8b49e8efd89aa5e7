extern "C" __global__ void gather(const int* __restrict__ where, double* __restrict__ out,
                                  const double* __restrict__ table, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = table[where[i] % size];
}
