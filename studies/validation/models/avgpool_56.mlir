// nki-samples adaptive_avg_pool2d: 1 x 64 x 56 x 56 to 7 x 7.
module @avgpool_56 {
  func.func public @main(%x: tensor<1x64x56x56xf32>) -> (tensor<1x64x7x7xf32>) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %sum = "stablehlo.reduce_window"(%x, %zero) <{base_dilations = array<i64: 1, 1, 1, 1>, padding = dense<0> : tensor<4x2xi64>, window_dilations = array<i64: 1, 1, 1, 1>, window_dimensions = array<i64: 1, 1, 8, 8>, window_strides = array<i64: 1, 1, 8, 8>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<1x64x56x56xf32>, tensor<f32>) -> tensor<1x64x7x7xf32>
    %count = stablehlo.constant dense<64.0> : tensor<f32>
    %counts = stablehlo.broadcast_in_dim %count, dims = [] : (tensor<f32>) -> tensor<1x64x7x7xf32>
    %y = stablehlo.divide %sum, %counts : tensor<1x64x7x7xf32>
    return %y : tensor<1x64x7x7xf32>
  }
}
