"""Text of the support module: Python and NumPy numbers as half precision and complex ones, rounded as NumPy and ml_dtypes round them."""

from __future__ import annotations

__all__ = ["NARROW_NUMBERS"]

NARROW_NUMBERS = """\
@object_complex = global ptr null
@object_complex128 = global ptr null
@object_complex64 = global ptr null
@object_float16 = global ptr null
@object_bfloat16 = global ptr null

; np.float16, or what number_f64 takes, rounded once: adding and subtracting 1.5 * 2^(e + 42) leaves 10 digits behind the first, or multiples of 2^-24.
define internal i1 @number_f16(ptr %object, ptr %to) {
  %wide.p = alloca double, align 8
  %half = load ptr, ptr @object_float16
  %is.half = call i1 @is_a(ptr %object, ptr %half)
  br i1 %is.half, label %copy, label %number
copy:
  %value.p = getelementptr i8, ptr %object, i64 {scalar}
  %value = load i16, ptr %value.p
  store i16 %value, ptr %to
  ret i1 true
number:
  %good = call i1 @number_f64(ptr %object, ptr %wide.p)
  br i1 %good, label %convert, label %no
convert:
  %x = load double, ptr %wide.p
  %bits = load i64, ptr %wide.p
  %size.bits = and i64 %bits, 9223372036854775807
  %size = bitcast i64 %size.bits to double
  %e.is = lshr i64 %size.bits, 52
  %e.small = icmp ult i64 %e.is, 1009
  %e.least = select i1 %e.small, i64 1009, i64 %e.is
  %e.large = icmp ugt i64 %e.least, 1043
  %e = select i1 %e.large, i64 1043, i64 %e.least
  %c.e = add i64 %e, 42
  %c.power = shl i64 %c.e, 52
  %c.bits = or i64 %c.power, 2251799813685248
  %c = bitcast i64 %c.bits to double
  %sum = fadd double %size, %c
  %r = fsub double %sum, %c
  %r.bits = bitcast double %r to i64
  %shifted = lshr i64 %r.bits, 42
  %normal = sub i64 %shifted, 1032192
  %units = fmul double %r, 16777216.0
  %denormal = fptosi double %units to i64
  %tiny = fcmp olt double %r, 0x3F10000000000000
  %finite = select i1 %tiny, i64 %denormal, i64 %normal
  %huge = fcmp oge double %r, 65536.0
  %known = select i1 %huge, i64 31744, i64 %finite
  %nan = fcmp uno double %x, %x
  %all = select i1 %nan, i64 32256, i64 %known
  %sign.bit = lshr i64 %bits, 63
  %sign = shl i64 %sign.bit, 15
  %signed = or i64 %all, %sign
  %narrow = trunc i64 %signed to i16
  store i16 %narrow, ptr %to
  ret i1 true
no:
  ret i1 false
}

; ml_dtypes.bfloat16, or what number_f64 takes, rounded to float and then to its upper half, as ml_dtypes does.
define internal i1 @number_bf16(ptr %object, ptr %to) {
  %wide.p = alloca double, align 8
  %half = load ptr, ptr @object_bfloat16
  %is.half = call i1 @is_a(ptr %object, ptr %half)
  br i1 %is.half, label %copy, label %number
copy:
  %value.p = getelementptr i8, ptr %object, i64 {scalar}
  %value = load i16, ptr %value.p
  store i16 %value, ptr %to
  ret i1 true
number:
  %good = call i1 @number_f64(ptr %object, ptr %wide.p)
  br i1 %good, label %convert, label %no
convert:
  %x = load double, ptr %wide.p
  %single = fptrunc double %x to float
  %bits = bitcast float %single to i32
  %upper = lshr i32 %bits, 16
  %odd = and i32 %upper, 1
  %nearly = add i32 %bits, 32767
  %rounded = add i32 %nearly, %odd
  %finite = lshr i32 %rounded, 16
  %quiet = or i32 %upper, 64
  %nan = fcmp uno float %single, %single
  %all = select i1 %nan, i32 %quiet, i32 %finite
  %narrow = trunc i32 %all to i16
  store i16 %narrow, ptr %to
  ret i1 true
no:
  ret i1 false
}

; Python's complex, np.complex128, np.complex64, or what number_f64 takes, as two doubles.
define internal i1 @number_c128(ptr %object, ptr %to) {
  %imag.p = getelementptr double, ptr %to, i64 1
  %value.p = getelementptr i8, ptr %object, i64 {scalar}
  %complex = load ptr, ptr @object_complex
  %is.complex = call i1 @is_a(ptr %object, ptr %complex)
  %complex128 = load ptr, ptr @object_complex128
  %is.complex128 = call i1 @is_a(ptr %object, ptr %complex128)
  %is.wide = or i1 %is.complex, %is.complex128
  br i1 %is.wide, label %copy, label %other
copy:
  %both = load <2 x double>, ptr %value.p, align 8
  store <2 x double> %both, ptr %to, align 8
  ret i1 true
other:
  %complex64 = load ptr, ptr @object_complex64
  %is.narrow = call i1 @is_a(ptr %object, ptr %complex64)
  br i1 %is.narrow, label %widen, label %real
widen:
  %singles = load <2 x float>, ptr %value.p, align 4
  %doubles = fpext <2 x float> %singles to <2 x double>
  store <2 x double> %doubles, ptr %to, align 8
  ret i1 true
real:
  store double 0.0, ptr %imag.p
  %good = call i1 @number_f64(ptr %object, ptr %to)
  ret i1 %good
}

; The same as two floats.
define internal i1 @number_c64(ptr %object, ptr %to) {
  %wide.p = alloca <2 x double>, align 16
  %good = call i1 @number_c128(ptr %object, ptr %wide.p)
  br i1 %good, label %convert, label %no
convert:
  %doubles = load <2 x double>, ptr %wide.p
  %singles = fptrunc <2 x double> %doubles to <2 x float>
  store <2 x float> %singles, ptr %to, align 4
  ret i1 true
no:
  ret i1 false
}

"""
