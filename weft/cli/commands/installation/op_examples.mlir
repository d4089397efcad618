// One example of every op in MLIR's generic form, separated by empty lines; %arg0, ... are its operands.
// @mesh is ["x"=2, "y"=4], and @f is any function from tensor<8x4xf32> to itself.

// Elementwise

"stablehlo.abs"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.cbrt"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.ceil"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.cosine"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.exponential"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.exponential_minus_one"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.floor"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.log"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.log_plus_one"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.logistic"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.negate"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.round_nearest_afz"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.round_nearest_even"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.rsqrt"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.sign"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.sine"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.sqrt"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.tan"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.tanh"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.count_leading_zeros"(%arg0) : (tensor<8x4xi32>) -> tensor<8x4xi32>

"stablehlo.not"(%arg0) : (tensor<8x4xi32>) -> tensor<8x4xi32>

"stablehlo.popcnt"(%arg0) : (tensor<8x4xi32>) -> tensor<8x4xi32>

"stablehlo.real"(%arg0) : (tensor<8x4xcomplex<f32>>) -> tensor<8x4xf32>

"stablehlo.imag"(%arg0) : (tensor<8x4xcomplex<f32>>) -> tensor<8x4xf32>

"stablehlo.is_finite"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xi1>

"stablehlo.add"(%arg0, %arg1) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.atan2"(%arg0, %arg1) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.divide"(%arg0, %arg1) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.maximum"(%arg0, %arg1) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.minimum"(%arg0, %arg1) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.multiply"(%arg0, %arg1) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.power"(%arg0, %arg1) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.remainder"(%arg0, %arg1) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.subtract"(%arg0, %arg1) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.and"(%arg0, %arg1) : (tensor<8x4xi32>, tensor<8x4xi32>) -> tensor<8x4xi32>

"stablehlo.or"(%arg0, %arg1) : (tensor<8x4xi32>, tensor<8x4xi32>) -> tensor<8x4xi32>

"stablehlo.xor"(%arg0, %arg1) : (tensor<8x4xi32>, tensor<8x4xi32>) -> tensor<8x4xi32>

"stablehlo.shift_left"(%arg0, %arg1) : (tensor<8x4xi32>, tensor<8x4xi32>) -> tensor<8x4xi32>

"stablehlo.shift_right_arithmetic"(%arg0, %arg1) : (tensor<8x4xi32>, tensor<8x4xi32>) -> tensor<8x4xi32>

"stablehlo.shift_right_logical"(%arg0, %arg1) : (tensor<8x4xi32>, tensor<8x4xi32>) -> tensor<8x4xi32>

"stablehlo.complex"(%arg0, %arg1) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xcomplex<f32>>

"stablehlo.compare"(%arg0, %arg1) <{compare_type = #stablehlo<comparison_type FLOAT>, comparison_direction = #stablehlo<comparison_direction LT>}> : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xi1>

"stablehlo.select"(%arg0, %arg1, %arg2) : (tensor<8x4xi1>, tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.clamp"(%arg0, %arg1, %arg2) : (tensor<f32>, tensor<8x4xf32>, tensor<f32>) -> tensor<8x4xf32>

"stablehlo.convert"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xbf16>

"stablehlo.reduce_precision"(%arg0) <{exponent_bits = 5 : i32, mantissa_bits = 10 : i32}> : (tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.bitcast_convert"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xi32>

"stablehlo.map"(%arg0, %arg1) <{dimensions = array<i64: 0, 1>}> ({
^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
  %1 = "stablehlo.add"(%arg2, %arg3) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  "stablehlo.return"(%1) : (tensor<f32>) -> ()
}) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>

// CHLO: special functions, and elementwise ops that broadcast

"chlo.acos"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"chlo.acosh"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"chlo.asin"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"chlo.asinh"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"chlo.atan"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"chlo.atanh"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"chlo.bessel_i1e"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"chlo.cosh"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"chlo.digamma"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"chlo.erf"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"chlo.erf_inv"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"chlo.erfc"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"chlo.lgamma"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"chlo.sinh"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"chlo.square"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"chlo.tan"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"chlo._asin_acos_kernel"(%arg0) : (tensor<8x4xcomplex<f32>>) -> tensor<8x4xcomplex<f32>>

"chlo.is_inf"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xi1>

"chlo.is_neg_inf"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xi1>

"chlo.is_pos_inf"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xi1>

"chlo.conj"(%arg0) : (tensor<8x4xcomplex<f32>>) -> tensor<8x4xcomplex<f32>>

"chlo.next_after"(%arg0, %arg1) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>

"chlo.polygamma"(%arg0, %arg1) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>

"chlo.zeta"(%arg0, %arg1) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>

"chlo.mulhi"(%arg0, %arg1) : (tensor<8x4xi32>, tensor<8x4xi32>) -> tensor<8x4xi32>

"chlo.broadcast_add"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>

"chlo.broadcast_atan2"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>

"chlo.broadcast_divide"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>

"chlo.broadcast_maximum"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>

"chlo.broadcast_minimum"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>

"chlo.broadcast_multiply"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>

"chlo.broadcast_next_after"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>

"chlo.broadcast_polygamma"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>

"chlo.broadcast_power"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>

"chlo.broadcast_remainder"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>

"chlo.broadcast_subtract"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>

"chlo.broadcast_zeta"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>

"chlo.broadcast_and"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<8x4xi32>, tensor<4xi32>) -> tensor<8x4xi32>

"chlo.broadcast_or"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<8x4xi32>, tensor<4xi32>) -> tensor<8x4xi32>

"chlo.broadcast_xor"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<8x4xi32>, tensor<4xi32>) -> tensor<8x4xi32>

"chlo.broadcast_shift_left"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<8x4xi32>, tensor<4xi32>) -> tensor<8x4xi32>

"chlo.broadcast_shift_right_arithmetic"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<8x4xi32>, tensor<4xi32>) -> tensor<8x4xi32>

"chlo.broadcast_shift_right_logical"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<8x4xi32>, tensor<4xi32>) -> tensor<8x4xi32>

"chlo.broadcast_complex"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xcomplex<f32>>

"chlo.broadcast_compare"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>, comparison_direction = #chlo<comparison_direction LT>}> : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xi1>

"chlo.broadcast_select"(%arg0, %arg1, %arg2) : (tensor<8x4xi1>, tensor<8x4xf32>, tensor<f32>) -> tensor<8x4xf32>

"chlo.constant"() <{value = dense<1.000000e+00> : tensor<8x4xf32>}> : () -> tensor<8x4xf32>

"chlo.constant_like"(%arg0) <{value = 1.000000e+00 : f32}> : (tensor<8x4xf32>) -> tensor<8x4xf32>

"chlo.top_k"(%arg0) <{k = 2 : i64}> : (tensor<8x4xf32>) -> (tensor<8x2xf32>, tensor<8x2xi32>)

"chlo.ragged_dot"(%arg0, %arg1, %arg2) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}> : (tensor<8x16xf32>, tensor<2x16x4xf32>, tensor<2xi64>) -> tensor<8x4xf32>

"chlo.scan"(%arg0, %arg1) <{dimension = 0 : i64, is_reverse = false, operandSegmentSizes = array<i32: 1, 1>, resultSegmentSizes = array<i32: 1, 1>}> ({
^bb0(%arg2: tensor<4xf32>, %arg3: tensor<4xf32>):
  %1 = "stablehlo.add"(%arg2, %arg3) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  "stablehlo.return"(%1, %1) : (tensor<4xf32>, tensor<4xf32>) -> ()
}) : (tensor<8x4xf32>, tensor<4xf32>) -> (tensor<8x4xf32>, tensor<4xf32>)

// Contraction

"stablehlo.dot_general"(%arg0, %arg1) <{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]>}> : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>

"stablehlo.dot"(%arg0, %arg1) : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>

"stablehlo.einsum"(%arg0, %arg1) <{einsum_config = "ik,kj->ij"}> : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>

"stablehlo.unary_einsum"(%arg0) <{einsum_config = "ij->ji"}> : (tensor<8x4xf32>) -> tensor<4x8xf32>

"stablehlo.convolution"(%arg0, %arg1) <{batch_group_count = 1 : i64, dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>, feature_group_count = 1 : i64, lhs_dilation = array<i64: 1, 1>, padding = dense<1> : tensor<2x2xi64>, rhs_dilation = array<i64: 1, 1>, window_strides = array<i64: 1, 1>}> : (tensor<2x8x8x3xf32>, tensor<3x3x3x4xf32>) -> tensor<2x8x8x4xf32>

// Reductions

"stablehlo.reduce"(%arg0, %arg1) <{dimensions = array<i64: 1>}> ({
^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
  %1 = "stablehlo.add"(%arg2, %arg3) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  "stablehlo.return"(%1) : (tensor<f32>) -> ()
}) : (tensor<8x4xf32>, tensor<f32>) -> tensor<8xf32>

"stablehlo.reduce_window"(%arg0, %arg1) <{window_dimensions = array<i64: 2, 2>, window_strides = array<i64: 2, 2>}> ({
^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
  %1 = "stablehlo.maximum"(%arg2, %arg3) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  "stablehlo.return"(%1) : (tensor<f32>) -> ()
}) : (tensor<8x8xf32>, tensor<f32>) -> tensor<4x4xf32>

"stablehlo.select_and_scatter"(%arg0, %arg1, %arg2) <{window_dimensions = array<i64: 2, 2>, window_strides = array<i64: 2, 2>}> ({
^bb0(%arg5: tensor<f32>, %arg6: tensor<f32>):
  %2 = "stablehlo.compare"(%arg5, %arg6) <{comparison_direction = #stablehlo<comparison_direction GE>}> : (tensor<f32>, tensor<f32>) -> tensor<i1>
  "stablehlo.return"(%2) : (tensor<i1>) -> ()
}, {
^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
  %1 = "stablehlo.add"(%arg3, %arg4) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  "stablehlo.return"(%1) : (tensor<f32>) -> ()
}) : (tensor<8x8xf32>, tensor<4x4xf32>, tensor<f32>) -> tensor<8x8xf32>

"stablehlo.batch_norm_training"(%arg0, %arg1, %arg2) <{epsilon = 1.000000e-03 : f32, feature_index = 2 : i64}> : (tensor<2x8x4xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<2x8x4xf32>, tensor<4xf32>, tensor<4xf32>)

"stablehlo.batch_norm_inference"(%arg0, %arg1, %arg2, %arg3, %arg4) <{epsilon = 1.000000e-03 : f32, feature_index = 2 : i64}> : (tensor<2x8x4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<2x8x4xf32>

"stablehlo.batch_norm_grad"(%arg0, %arg1, %arg2, %arg3, %arg4) <{epsilon = 1.000000e-03 : f32, feature_index = 2 : i64}> : (tensor<2x8x4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<2x8x4xf32>) -> (tensor<2x8x4xf32>, tensor<4xf32>, tensor<4xf32>)

// Shapes

"stablehlo.constant"() <{value = dense<1.000000e+00> : tensor<8x4xf32>}> : () -> tensor<8x4xf32>

"stablehlo.iota"() <{iota_dimension = 0 : i64}> : () -> tensor<8x4xi32>

"stablehlo.broadcast_in_dim"(%arg0) <{broadcast_dimensions = array<i64: 1>}> : (tensor<4xf32>) -> tensor<8x4xf32>

"stablehlo.broadcast"(%arg0) <{broadcast_sizes = array<i64: 8>}> : (tensor<4xf32>) -> tensor<8x4xf32>

"stablehlo.reshape"(%arg0) : (tensor<8x4xf32>) -> tensor<2x4x4xf32>

"stablehlo.transpose"(%arg0) <{permutation = array<i64: 1, 0>}> : (tensor<8x4xf32>) -> tensor<4x8xf32>

"stablehlo.slice"(%arg0) <{limit_indices = array<i64: 8, 3>, start_indices = array<i64: 0, 1>, strides = array<i64: 1, 1>}> : (tensor<8x4xf32>) -> tensor<8x2xf32>

"stablehlo.concatenate"(%arg0, %arg1) <{dimension = 0 : i64}> : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<16x4xf32>

"stablehlo.pad"(%arg0, %arg1) <{edge_padding_high = array<i64: 0, 1>, edge_padding_low = array<i64: 0, 1>, interior_padding = array<i64: 0, 0>}> : (tensor<8x4xf32>, tensor<f32>) -> tensor<8x6xf32>

"stablehlo.reverse"(%arg0) <{dimensions = array<i64: 1>}> : (tensor<8x4xf32>) -> tensor<8x4xf32>

// Indexing

"stablehlo.dynamic_slice"(%arg0, %arg1, %arg2) <{slice_sizes = array<i64: 8, 2>}> : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<8x2xf32>

"stablehlo.dynamic_update_slice"(%arg0, %arg1, %arg2, %arg3) : (tensor<8x4xf32>, tensor<8x2xf32>, tensor<i32>, tensor<i32>) -> tensor<8x4xf32>

"stablehlo.gather"(%arg0, %arg1) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 4>}> : (tensor<16x4xf32>, tensor<8x1xi32>) -> tensor<8x4xf32>

"stablehlo.dynamic_gather"(%arg0, %arg1, %arg2) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false}> : (tensor<16x4xf32>, tensor<8x1xi32>, tensor<2xi32>) -> tensor<8x4xf32>

"stablehlo.scatter"(%arg0, %arg1, %arg2) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
  %1 = "stablehlo.add"(%arg3, %arg4) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  "stablehlo.return"(%1) : (tensor<f32>) -> ()
}) : (tensor<16x4xf32>, tensor<8x1xi32>, tensor<8x4xf32>) -> tensor<16x4xf32>

"stablehlo.torch_index_select"(%arg0, %arg1) <{batch_dims = 0 : i64, dim = 0 : i64}> : (tensor<16x4xf32>, tensor<8xi32>) -> tensor<8x4xf32>

// Order

"stablehlo.sort"(%arg0) <{dimension = 1 : i64, is_stable = true}> ({
^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>):
  %1 = "stablehlo.compare"(%arg1, %arg2) <{comparison_direction = #stablehlo<comparison_direction LT>}> : (tensor<f32>, tensor<f32>) -> tensor<i1>
  "stablehlo.return"(%1) : (tensor<i1>) -> ()
}) : (tensor<8x4xf32>) -> tensor<8x4xf32>

// Linear algebra

"stablehlo.cholesky"(%arg0) <{lower = true}> : (tensor<2x4x4xf32>) -> tensor<2x4x4xf32>

"stablehlo.triangular_solve"(%arg0, %arg1) <{left_side = true, lower = true, transpose_a = #stablehlo<transpose NO_TRANSPOSE>, unit_diagonal = false}> : (tensor<2x4x4xf32>, tensor<2x4x3xf32>) -> tensor<2x4x3xf32>

"stablehlo.fft"(%arg0) <{fft_length = array<i64: 16>, fft_type = #stablehlo<fft_type FFT>}> : (tensor<8x16xcomplex<f32>>) -> tensor<8x16xcomplex<f32>>

// Random numbers

"stablehlo.rng"(%arg0, %arg1, %arg2) <{rng_distribution = #stablehlo<rng_distribution UNIFORM>}> : (tensor<f32>, tensor<f32>, tensor<2xi64>) -> tensor<8x4xf32>

"stablehlo.rng_bit_generator"(%arg0) <{rng_algorithm = #stablehlo<rng_algorithm THREE_FRY>}> : (tensor<2xui64>) -> (tensor<2xui64>, tensor<8x4xui32>)

// Shapes known at run time

"stablehlo.dynamic_broadcast_in_dim"(%arg0, %arg1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<4xf32>, tensor<2xi32>) -> tensor<8x4xf32>

"stablehlo.dynamic_iota"(%arg0) <{iota_dimension = 0 : i64}> : (tensor<2xi32>) -> tensor<8x4xi32>

"stablehlo.dynamic_reshape"(%arg0, %arg1) : (tensor<8x4xf32>, tensor<3xi32>) -> tensor<2x4x4xf32>

"stablehlo.dynamic_pad"(%arg0, %arg1, %arg2, %arg3, %arg4) : (tensor<8x4xf32>, tensor<f32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<8x6xf32>

"stablehlo.real_dynamic_slice"(%arg0, %arg1, %arg2, %arg3) : (tensor<8x4xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<8x2xf32>

"stablehlo.dynamic_conv"(%arg0, %arg1, %arg2) <{batch_group_count = 1 : i64, dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>, feature_group_count = 1 : i64}> : (tensor<2x8x8x3xf32>, tensor<3x3x3x4xf32>, tensor<2x2xi32>) -> tensor<2x8x8x4xf32>

"stablehlo.get_dimension_size"(%arg0) <{dimension = 0 : i64}> : (tensor<8x4xf32>) -> tensor<i32>

"stablehlo.set_dimension_size"(%arg0, %arg1) <{dimension = 0 : i64}> : (tensor<8x4xf32>, tensor<i32>) -> tensor<?x4xf32, #stablehlo.bounds<8, ?>>

// Control flow, tokens and tuples

"stablehlo.if"(%arg0) ({
  %2 = "stablehlo.constant"() <{value = dense<1.000000e+00> : tensor<f32>}> : () -> tensor<f32>
  "stablehlo.return"(%2) : (tensor<f32>) -> ()
}, {
  %1 = "stablehlo.constant"() <{value = dense<2.000000e+00> : tensor<f32>}> : () -> tensor<f32>
  "stablehlo.return"(%1) : (tensor<f32>) -> ()
}) : (tensor<i1>) -> tensor<f32>

"stablehlo.case"(%arg0) ({
  %2 = "stablehlo.constant"() <{value = dense<1.000000e+00> : tensor<f32>}> : () -> tensor<f32>
  "stablehlo.return"(%2) : (tensor<f32>) -> ()
}, {
  %1 = "stablehlo.constant"() <{value = dense<2.000000e+00> : tensor<f32>}> : () -> tensor<f32>
  "stablehlo.return"(%1) : (tensor<f32>) -> ()
}) : (tensor<i32>) -> tensor<f32>

"stablehlo.while"(%arg0) ({
^bb0(%arg2: tensor<i32>):
  %2 = "stablehlo.constant"() <{value = dense<10> : tensor<i32>}> : () -> tensor<i32>
  %3 = "stablehlo.compare"(%arg2, %2) <{comparison_direction = #stablehlo<comparison_direction LT>}> : (tensor<i32>, tensor<i32>) -> tensor<i1>
  "stablehlo.return"(%3) : (tensor<i1>) -> ()
}, {
^bb0(%arg1: tensor<i32>):
  %1 = "stablehlo.add"(%arg1, %arg1) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  "stablehlo.return"(%1) : (tensor<i32>) -> ()
}) : (tensor<i32>) -> tensor<i32>

"func.call"(%arg0) <{callee = @f}> : (tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.composite"(%arg0) <{decomposition = @f, name = "example.double"}> : (tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.optimization_barrier"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.after_all"(%arg0, %arg1) : (!stablehlo.token, !stablehlo.token) -> !stablehlo.token

"stablehlo.create_token"() : () -> !stablehlo.token

"stablehlo.tuple"(%arg0, %arg1) : (tensor<8x4xf32>, tensor<8x4xi32>) -> tuple<tensor<8x4xf32>, tensor<8x4xi32>>

"stablehlo.get_tuple_element"(%arg0) <{index = 1 : i32}> : (tuple<tensor<8x4xf32>, tensor<8x4xi32>>) -> tensor<8x4xi32>

"stablehlo.custom_call"(%arg0) <{call_target_name = "example"}> : (tensor<8x4xf32>) -> tensor<8x4xf32>

// Collectives

"stablehlo.all_reduce"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>):
  %1 = "stablehlo.add"(%arg1, %arg2) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  "stablehlo.return"(%1) : (tensor<f32>) -> ()
}) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.all_gather"(%arg0) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> : (tensor<8x4xf32>) -> tensor<32x4xf32>

"stablehlo.reduce_scatter"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, scatter_dimension = 0 : i64, use_global_device_ids}> ({
^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>):
  %1 = "stablehlo.add"(%arg1, %arg2) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  "stablehlo.return"(%1) : (tensor<f32>) -> ()
}) : (tensor<8x4xf32>) -> tensor<2x4xf32>

"stablehlo.all_to_all"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 1 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<8x4xf32>) -> tensor<2x16xf32>

"stablehlo.collective_permute"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[0, 1], [1, 2], [2, 3], [3, 0]]> : tensor<4x2xi64>}> : (tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.collective_broadcast"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}> : (tensor<8x4xf32>) -> tensor<8x4xf32>

"stablehlo.partition_id"() : () -> tensor<ui32>

"stablehlo.replica_id"() : () -> tensor<ui32>

"stablehlo.send"(%arg0, %arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, is_host_transfer = false, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<8x4xf32>, !stablehlo.token) -> !stablehlo.token

"stablehlo.recv"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, is_host_transfer = false, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (!stablehlo.token) -> (tensor<8x4xf32>, !stablehlo.token)

"stablehlo.infeed"(%arg0) <{infeed_config = ""}> : (!stablehlo.token) -> (tensor<8x4xf32>, !stablehlo.token)

"stablehlo.outfeed"(%arg0, %arg1) <{outfeed_config = ""}> : (tensor<8x4xf32>, !stablehlo.token) -> !stablehlo.token

"stablehlo.async_start"(%arg0) ({
^bb0(%arg1: tensor<8x4xf32>):
  %1 = "stablehlo.all_gather"(%arg1) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> : (tensor<8x4xf32>) -> tensor<32x4xf32>
  "stablehlo.return"(%1) : (tensor<32x4xf32>) -> ()
}) : (tensor<8x4xf32>) -> !stablehlo.future<tensor<32x4xf32>>

"stablehlo.async_done"(%arg0) : (!stablehlo.future<tensor<32x4xf32>>) -> tensor<32x4xf32>

// Local programs: what StableHLO lacks

"weft.axis_index"() <{axes = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>}> : () -> tensor<i32>

"weft.all_slice"(%arg0) <{pieces = #sdy.sharding<@mesh, [{"x"}, {}]>}> : (tensor<8x4xf32>) -> tensor<4x4xf32>

"weft.attention"(%arg0, %arg1, %arg2) <{scale = 5.000000e-01 : f64, left = -1 : i64, right = 0 : i64}> : (tensor<2x4x8x16xf32>, tensor<2x2x8x16xf32>, tensor<2x2x8x16xf32>) -> tensor<2x4x8x16xf32>

"weft.collective_permute"(%arg0) <{axes = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>, sources = array<i64: 1, 0>}> : (tensor<8x4xf32>) -> tensor<8x4xf32>

"weft.reduce_scatter"(%arg0) <{axes = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>, reduction = "add", scatter_dimensions = array<i64: 0>}> : (tensor<8x4xf32>) -> tensor<4x4xf32>

"weft.ragged_all_to_all"(%arg0, %arg1, %arg2, %arg3, %arg4, %arg5) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>}> : (tensor<8x4xf32>, tensor<16x4xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<16x4xf32>

"weft.async_start"(%arg0, %arg1) ({
^bb0(%arg2: tensor<8x4xf32>, %arg3: tensor<8x4xf32>):
  %1:2 = "weft.collective_permute"(%arg2, %arg3) <{axes = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>, sources = array<i64: 1, 0>}> : (tensor<8x4xf32>, tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>)
  "stablehlo.return"(%1#0, %1#1) : (tensor<8x4xf32>, tensor<8x4xf32>) -> ()
}) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tuple<tensor<8x4xf32>, tensor<8x4xf32>>

"weft.async_done"(%arg0) : (tuple<tensor<8x4xf32>, tensor<8x4xf32>>) -> (tensor<8x4xf32>, tensor<8x4xf32>)

// Shardings

"sdy.sharding_constraint"(%arg0) <{sharding = #sdy.sharding<@mesh, [{"x"}, {?}]>}> : (tensor<8x4xf32>) -> tensor<8x4xf32>

"sdy.reshard"(%arg0) <{sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}> : (tensor<8x4xf32>) -> tensor<8x4xf32>

"sdy.propagation_barrier"(%arg0) <{allowed_direction = 1 : i32}> : (tensor<8x4xf32>) -> tensor<8x4xf32>

"sdy.sharding_group"(%arg0) <{group_id = 1 : i64}> : (tensor<8x4xf32>) -> ()

"sdy.manual_computation"(%arg0) <{in_shardings = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>, manual_axes = #sdy<manual_axes{"x"}>, out_shardings = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>}> ({
^bb0(%arg1: tensor<4x4xf32>):
  %1 = "stablehlo.add"(%arg1, %arg1) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  "sdy.return"(%1) : (tensor<4x4xf32>) -> ()
}) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"sdy.named_computation"(%arg0) <{name = "layer"}> ({
^bb0(%arg1: tensor<8x4xf32>):
  %1 = "stablehlo.add"(%arg1, %arg1) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  "sdy.return"(%1) : (tensor<8x4xf32>) -> ()
}) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"sdy.all_gather"(%arg0) <{gathering_axes = #sdy<list_of_axis_ref_lists[{"x"}, {}]>, out_sharding = #sdy.sharding<@mesh, [{}, {}]>}> : (tensor<8x4xf32>) -> tensor<8x4xf32>

"sdy.all_slice"(%arg0) <{out_sharding = #sdy.sharding<@mesh, [{"x"}, {}]>, slicing_axes = #sdy<list_of_axis_ref_lists[{"x"}, {}]>}> : (tensor<8x4xf32>) -> tensor<8x4xf32>

"sdy.all_to_all"(%arg0) <{out_sharding = #sdy.sharding<@mesh, [{}, {"x"}]>, params = #sdy<all_to_all_param_list[{"x"}: 0->1]>}> : (tensor<8x4xf32>) -> tensor<8x4xf32>

"sdy.collective_permute"(%arg0) <{out_sharding = #sdy.sharding<@mesh, [{"y":(1)2}, {}]>}> : (tensor<8x4xf32>) -> tensor<8x4xf32>

"sdy.all_reduce"(%arg0) <{out_sharding = #sdy.sharding<@mesh, [{}, {}]>, reduction_axes = #sdy<axis_ref_list{"x"}>}> : (tensor<8x4xf32>) -> tensor<8x4xf32>

"sdy.reduce_scatter"(%arg0) <{out_sharding = #sdy.sharding<@mesh, [{"x"}, {}]>, reduce_scatter_axes = #sdy<list_of_axis_ref_lists[{"x"}, {}]>}> : (tensor<8x4xf32>) -> tensor<8x4xf32>

"sdy.constant"() <{value = dense<1.000000e+00> : tensor<8x4xf32>}> : () -> tensor<8x4xf32>

"sdy.data_flow_edge"(%arg0) <{sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}> : (tensor<8x4xf32>) -> tensor<8x4xf32>

"sdy.func_data_flow_edge"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>

"sdy.replicated_to_unreduced"(%arg0) <{axes = #sdy<axis_ref_list{"x"}>, out_sharding = #sdy.sharding<@mesh, [{}, {}], unreduced={"x"}>}> : (tensor<8x4xf32>) -> tensor<8x4xf32>

"sdy.sharded_to_unreduced"(%arg0) <{axes = #sdy<list_of_axis_ref_lists[{"x"}, {}]>, out_sharding = #sdy.sharding<@mesh, [{}, {}], unreduced={"x"}>}> : (tensor<8x4xf32>) -> tensor<8x4xf32>

// Checks of results, and what StableHLO's own interpreter adds

"check.expect_eq"(%arg0, %arg1) : (tensor<8x4xf32>, tensor<8x4xf32>) -> ()

"check.expect_eq_const"(%arg0) <{value = dense<1.000000e+00> : tensor<8x4xf32>}> : (tensor<8x4xf32>) -> ()

"check.expect_almost_eq"(%arg0, %arg1) : (tensor<8x4xf32>, tensor<8x4xf32>) -> ()

"check.expect_almost_eq_const"(%arg0) <{value = dense<1.000000e+00> : tensor<8x4xf32>}> : (tensor<8x4xf32>) -> ()

"check.expect_close"(%arg0, %arg1) : (tensor<8x4xf32>, tensor<8x4xf32>) -> ()

"check.expect_close_const"(%arg0) <{value = dense<1.000000e+00> : tensor<8x4xf32>}> : (tensor<8x4xf32>) -> ()

"interpreter.run_parallel"(%arg0, %arg1) <{programs = [[@f, @f]]}> : (tensor<8x4xf32>, tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>)

"interpreter.print"(%arg0) : (tensor<8x4xf32>) -> ()

"interpreter.probe"(%arg0) <{probe_id = "after_layer_1"}> : (tensor<8x4xf32>) -> tensor<8x4xf32>

"check.expect_serialized_eq"(%arg0) <{probe_id = "after_layer_1"}> : (tensor<8x4xf32>) -> ()

// Refused: quantized types are not supported

"stablehlo.uniform_quantize"(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xi8>

"stablehlo.uniform_dequantize"(%arg0) : (tensor<8x4xi8>) -> tensor<8x4xf32>
