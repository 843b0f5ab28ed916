// nki-samples adaptive_avg_pool2d: 2 x 128 x 28 x 28 to 14 x 14.
module @avgpool_28 {
  func.func public @main(%x: tensor<2x128x28x28xf32>) -> (tensor<2x128x14x14xf32>) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %sum = "stablehlo.reduce_window"(%x, %zero) <{base_dilations = array<i64: 1, 1, 1, 1>, padding = dense<0> : tensor<4x2xi64>, window_dilations = array<i64: 1, 1, 1, 1>, window_dimensions = array<i64: 1, 1, 2, 2>, window_strides = array<i64: 1, 1, 2, 2>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<2x128x28x28xf32>, tensor<f32>) -> tensor<2x128x14x14xf32>
    %count = stablehlo.constant dense<4.0> : tensor<f32>
    %counts = stablehlo.broadcast_in_dim %count, dims = [] : (tensor<f32>) -> tensor<2x128x14x14xf32>
    %y = stablehlo.divide %sum, %counts : tensor<2x128x14x14xf32>
    return %y : tensor<2x128x14x14xf32>
  }
}
