// nki-samples adaptive_avg_pool2d: 1 x 256 x 14 x 14 to 7 x 7.
module @avgpool_14 {
  func.func public @main(%x: tensor<1x256x14x14xf16>) -> (tensor<1x256x7x7xf16>) {
    %zero = stablehlo.constant dense<0.0> : tensor<f16>
    %sum = "stablehlo.reduce_window"(%x, %zero) <{base_dilations = array<i64: 1, 1, 1, 1>, padding = dense<0> : tensor<4x2xi64>, window_dilations = array<i64: 1, 1, 1, 1>, window_dimensions = array<i64: 1, 1, 2, 2>, window_strides = array<i64: 1, 1, 2, 2>}> ({
    ^bb0(%a: tensor<f16>, %b: tensor<f16>):
      %s = stablehlo.add %a, %b : tensor<f16>
      stablehlo.return %s : tensor<f16>
    }) : (tensor<1x256x14x14xf16>, tensor<f16>) -> tensor<1x256x7x7xf16>
    %count = stablehlo.constant dense<4.0> : tensor<f16>
    %counts = stablehlo.broadcast_in_dim %count, dims = [] : (tensor<f16>) -> tensor<1x256x7x7xf16>
    %y = stablehlo.divide %sum, %counts : tensor<1x256x7x7xf16>
    return %y : tensor<1x256x7x7xf16>
  }
}
