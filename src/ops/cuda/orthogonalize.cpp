// Three batched products a round, each with what is added to it in the same pass.
#include "ops/cuda/orthogonalize.h"

#include "ops/cuda/gemm.h"

namespace redline::ops::cuda {

void run(const Orthogonalize<Tensor>& op, const device::cuda::Launch& launch) {
  const std::int64_t rows = op.x.shape[1], columns = op.x.shape[2], elements = rows * columns;
  const std::int64_t m = std::min(rows, columns), n = std::max(rows, columns);
  const bool wide = rows <= columns;
  Gemm all{.input = op.x.dtype, .input_b = op.x.dtype, .output = op.x.dtype, .how = op.how};
  all.workspace = op.workspace.data;
  all.workspace_bytes = op.workspace.present() ? op.workspace.bytes() : 0;
  all.batch = op.x.shape[0];

  const void* from = op.x.data;
  void* to = op.y.data;
  for (std::int64_t round = 0; round < op.rounds; ++round) {
    const Polynomial p = polynomial(op.polynomials, round);
    Gemm gram = all;
    gram.transpose_a = !wide;
    gram.transpose_b = wide;
    gram.m = gram.n = m;
    gram.k = n;
    gram.a = gram.b = from;
    gram.lda = gram.ldb = columns;
    gram.stride_a = gram.stride_b = elements;
    gram.c = op.gram.data;
    gram.ldc = m;
    gram.stride_c = m * m;
    gemm(gram, launch);

    Gemm square = all;
    square.m = square.n = square.k = m;
    square.a = square.b = op.gram.data;
    square.c = op.square.data;
    square.lda = square.ldb = square.ldc = m;
    square.stride_a = square.stride_b = square.stride_c = m * m;
    square.alpha = p.c;
    square.beta = p.b;
    square.added = op.gram.data;
    gemm(square, launch);

    Gemm next = all;
    next.m = rows;
    next.n = columns;
    next.k = m;
    next.a = wide ? op.square.data : from;
    next.lda = wide ? m : columns;
    next.stride_a = wide ? m * m : elements;
    next.b = wide ? from : op.square.data;
    next.ldb = wide ? columns : m;
    next.stride_b = wide ? elements : m * m;
    next.c = to;
    next.ldc = columns;
    next.stride_c = elements;
    next.beta = p.a;
    next.added = from;
    gemm(next, launch);

    void* const written = to;
    to = const_cast<void*>(from);
    from = written;
  }
}

}  // namespace redline::ops::cuda
