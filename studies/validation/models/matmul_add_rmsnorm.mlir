// NKIBench matmul_add_rmsnorm: [4096, 2048] times [2048, 2048], plus a residual, then the norm.
module @matmul_add_rmsnorm {
  func.func public @main(%x: tensor<4096x2048xf32>, %w: tensor<2048x2048xf32>, %residual: tensor<4096x2048xf32>, %gain: tensor<2048xf32>) -> (tensor<4096x2048xf32>) {
    %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4096x2048xf32>, tensor<2048x2048xf32>) -> tensor<4096x2048xf32>
    %s = stablehlo.add %p, %residual : tensor<4096x2048xf32>
    %sq = stablehlo.multiply %s, %s : tensor<4096x2048xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %total = stablehlo.reduce(%sq init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<4096x2048xf32>, tensor<f32>) -> tensor<4096xf32>
    %count = stablehlo.constant dense<2048.0> : tensor<f32>
    %counts = stablehlo.broadcast_in_dim %count, dims = [] : (tensor<f32>) -> tensor<4096xf32>
    %mean = stablehlo.divide %total, %counts : tensor<4096xf32>
    %eps = stablehlo.constant dense<1.0e-6> : tensor<f32>
    %epses = stablehlo.broadcast_in_dim %eps, dims = [] : (tensor<f32>) -> tensor<4096xf32>
    %shifted = stablehlo.add %mean, %epses : tensor<4096xf32>
    %inv = stablehlo.rsqrt %shifted : tensor<4096xf32>
    %invs = stablehlo.broadcast_in_dim %inv, dims = [0] : (tensor<4096xf32>) -> tensor<4096x2048xf32>
    %scaled = stablehlo.multiply %s, %invs : tensor<4096x2048xf32>
    %gains = stablehlo.broadcast_in_dim %gain, dims = [1] : (tensor<2048xf32>) -> tensor<4096x2048xf32>
    %y = stablehlo.multiply %scaled, %gains : tensor<4096x2048xf32>
    return %y : tensor<4096x2048xf32>
  }
}
