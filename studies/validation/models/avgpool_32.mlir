// nki-samples adaptive_avg_pool2d: 8 x 64 x 32 x 32 to 4 x 4.
module @avgpool_32 {
  func.func public @main(%x: tensor<8x64x32x32xf16>) -> (tensor<8x64x4x4xf16>) {
    %zero = stablehlo.constant dense<0.0> : tensor<f16>
    %sum = "stablehlo.reduce_window"(%x, %zero) <{base_dilations = array<i64: 1, 1, 1, 1>, padding = dense<0> : tensor<4x2xi64>, window_dilations = array<i64: 1, 1, 1, 1>, window_dimensions = array<i64: 1, 1, 8, 8>, window_strides = array<i64: 1, 1, 8, 8>}> ({
    ^bb0(%a: tensor<f16>, %b: tensor<f16>):
      %s = stablehlo.add %a, %b : tensor<f16>
      stablehlo.return %s : tensor<f16>
    }) : (tensor<8x64x32x32xf16>, tensor<f16>) -> tensor<8x64x4x4xf16>
    %count = stablehlo.constant dense<64.0> : tensor<f16>
    %counts = stablehlo.broadcast_in_dim %count, dims = [] : (tensor<f16>) -> tensor<8x64x4x4xf16>
    %y = stablehlo.divide %sum, %counts : tensor<8x64x4x4xf16>
    return %y : tensor<8x64x4x4xf16>
  }
}
