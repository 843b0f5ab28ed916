// NKIBench lora: [4096, 5120] times [5120, 12288], plus a product of rank 128.
module @lora {
  func.func public @main(%x: tensor<4096x5120xf32>, %w: tensor<5120x12288xf32>, %down: tensor<5120x128xf32>, %up: tensor<128x12288xf32>) -> (tensor<4096x12288xf32>) {
    %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4096x5120xf32>, tensor<5120x12288xf32>) -> tensor<4096x12288xf32>
    %d = stablehlo.dot_general %x, %down, contracting_dims = [1] x [0] : (tensor<4096x5120xf32>, tensor<5120x128xf32>) -> tensor<4096x128xf32>
    %u = stablehlo.dot_general %d, %up, contracting_dims = [1] x [0] : (tensor<4096x128xf32>, tensor<128x12288xf32>) -> tensor<4096x12288xf32>
    %y = stablehlo.add %p, %u : tensor<4096x12288xf32>
    return %y : tensor<4096x12288xf32>
  }
}
