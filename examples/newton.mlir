// The square root of 2 by Newton's method: a while loop that stops when a step changes nothing.
module @newton {
  func.func public @main() -> (tensor<f64>, tensor<i32>) {
    %two = stablehlo.constant dense<2.0> : tensor<f64>
    %half = stablehlo.constant dense<0.5> : tensor<f64>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %far = stablehlo.constant dense<0.0> : tensor<f64>
    %root, %before, %steps = stablehlo.while(%x = %two, %last = %far, %n = %zero) : tensor<f64>, tensor<f64>, tensor<i32>
    cond {
      %moves = stablehlo.compare NE, %x, %last, FLOAT : (tensor<f64>, tensor<f64>) -> tensor<i1>
      stablehlo.return %moves : tensor<i1>
    } do {
      %0 = stablehlo.divide %two, %x : tensor<f64>
      %1 = stablehlo.add %x, %0 : tensor<f64>
      %next = stablehlo.multiply %1, %half : tensor<f64>
      %count = stablehlo.add %n, %one : tensor<i32>
      stablehlo.return %next, %x, %count : tensor<f64>, tensor<f64>, tensor<i32>
    }
    return %root, %steps : tensor<f64>, tensor<i32>
  }
}
