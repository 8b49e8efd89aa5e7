extern "C" __global__ void histogram(const int* __restrict__ values, int* __restrict__ bins, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) atomicAdd(&bins[values[i] % size], 1);
}
