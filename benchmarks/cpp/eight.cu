extern "C" __global__ void eight(const int* __restrict__ where, double* __restrict__ out,
                                 const double* __restrict__ a, const double* __restrict__ b,
                                 const double* __restrict__ c, const double* __restrict__ d,
                                 const double* __restrict__ e, const double* __restrict__ f,
                                 const double* __restrict__ g, const double* __restrict__ h, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    int k = where[i] % size;
    out[i] = a[k] + b[k] + c[k] + d[k] + e[k] + f[k] + g[k] + h[k];
}
