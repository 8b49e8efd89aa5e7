struct Cell {
    double density;
    float length;
    int kind;
};

extern "C" __global__ void records(const int* __restrict__ where, double* __restrict__ out,
                                   const Cell* __restrict__ cells, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const Cell& cell = cells[where[i] % size];
    out[i] = cell.density * cell.length + cell.kind;
}
