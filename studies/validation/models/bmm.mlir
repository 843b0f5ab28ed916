// NKIBench bmm: 16 products of [4096, 64] and [64, 4096].
module @bmm {
  func.func public @main(%x: tensor<16x4096x64xf32>, %y: tensor<16x64x4096xf32>) -> (tensor<16x4096x4096xf32>) {
    %z = stablehlo.dot_general %x, %y, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<16x4096x64xf32>, tensor<16x64x4096xf32>) -> tensor<16x4096x4096xf32>
    return %z : tensor<16x4096x4096xf32>
  }
}
