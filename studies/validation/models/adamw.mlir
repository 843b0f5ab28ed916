// NKIBench adamw: one step on [10944, 2048]; parameter, gradient and both moments in, three of them out.
module @adamw {
  func.func public @main(%p: tensor<10944x2048xf32>, %g: tensor<10944x2048xf32>, %m: tensor<10944x2048xf32>, %v: tensor<10944x2048xf32>) -> (tensor<10944x2048xf32>, tensor<10944x2048xf32>, tensor<10944x2048xf32>) {
    %b1_c = stablehlo.constant dense<0.9> : tensor<f32>
    %b1 = stablehlo.broadcast_in_dim %b1_c, dims = [] : (tensor<f32>) -> tensor<10944x2048xf32>
    %nb1_c = stablehlo.constant dense<0.1> : tensor<f32>
    %nb1 = stablehlo.broadcast_in_dim %nb1_c, dims = [] : (tensor<f32>) -> tensor<10944x2048xf32>
    %b2_c = stablehlo.constant dense<0.999> : tensor<f32>
    %b2 = stablehlo.broadcast_in_dim %b2_c, dims = [] : (tensor<f32>) -> tensor<10944x2048xf32>
    %nb2_c = stablehlo.constant dense<0.001> : tensor<f32>
    %nb2 = stablehlo.broadcast_in_dim %nb2_c, dims = [] : (tensor<f32>) -> tensor<10944x2048xf32>
    %eps_c = stablehlo.constant dense<1.0e-8> : tensor<f32>
    %eps = stablehlo.broadcast_in_dim %eps_c, dims = [] : (tensor<f32>) -> tensor<10944x2048xf32>
    %lr_c = stablehlo.constant dense<0.001> : tensor<f32>
    %lr = stablehlo.broadcast_in_dim %lr_c, dims = [] : (tensor<f32>) -> tensor<10944x2048xf32>
    %keep_c = stablehlo.constant dense<0.99999> : tensor<f32>
    %keep = stablehlo.broadcast_in_dim %keep_c, dims = [] : (tensor<f32>) -> tensor<10944x2048xf32>
    %c1_c = stablehlo.constant dense<10.0> : tensor<f32>
    %c1 = stablehlo.broadcast_in_dim %c1_c, dims = [] : (tensor<f32>) -> tensor<10944x2048xf32>
    %c2_c = stablehlo.constant dense<1000.0> : tensor<f32>
    %c2 = stablehlo.broadcast_in_dim %c2_c, dims = [] : (tensor<f32>) -> tensor<10944x2048xf32>
    %m1 = stablehlo.multiply %m, %b1 : tensor<10944x2048xf32>
    %m2 = stablehlo.multiply %g, %nb1 : tensor<10944x2048xf32>
    %mn = stablehlo.add %m1, %m2 : tensor<10944x2048xf32>
    %gg = stablehlo.multiply %g, %g : tensor<10944x2048xf32>
    %v1 = stablehlo.multiply %v, %b2 : tensor<10944x2048xf32>
    %v2 = stablehlo.multiply %gg, %nb2 : tensor<10944x2048xf32>
    %vn = stablehlo.add %v1, %v2 : tensor<10944x2048xf32>
    %mh = stablehlo.multiply %mn, %c1 : tensor<10944x2048xf32>
    %vh = stablehlo.multiply %vn, %c2 : tensor<10944x2048xf32>
    %rt = stablehlo.sqrt %vh : tensor<10944x2048xf32>
    %den = stablehlo.add %rt, %eps : tensor<10944x2048xf32>
    %q = stablehlo.divide %mh, %den : tensor<10944x2048xf32>
    %step = stablehlo.multiply %q, %lr : tensor<10944x2048xf32>
    %pk = stablehlo.multiply %p, %keep : tensor<10944x2048xf32>
    %pn = stablehlo.subtract %pk, %step : tensor<10944x2048xf32>
    return %pn, %mn, %vn : tensor<10944x2048xf32>, tensor<10944x2048xf32>, tensor<10944x2048xf32>
  }
}
