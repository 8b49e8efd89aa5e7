extern "C" __global__ void walk(const unsigned* __restrict__ seeds, double* __restrict__ out,
                                const double* __restrict__ field, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    unsigned state = seeds[i];
    int x = side / 2, y = side / 2;
    double total = 0;
    for (int step = 0; step < steps; ++step) {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        x = (x + int(state >> 8 & 1) * 2 - 1) & (side - 1);
        y = (y + int(state >> 9 & 1) * 2 - 1) & (side - 1);
        total += field[y * side + x];
    }
    out[i] = total;
}
