extern "C" __global__ void stencil(double* __restrict__ out, const double* __restrict__ field, int count) {
    int j = blockIdx.x * blockDim.x + threadIdx.x;
    int i = blockIdx.y * blockDim.y + threadIdx.y;
    if (0 < i && i < side - 1 && 0 < j && j < side - 1) {
        const double* at = field + i * side + j;
        out[i * side + j] = at[-side] + at[side] + at[-1] + at[1] - 4 * at[0];
    }
}
