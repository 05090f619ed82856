"""Programs that several tests of the graph stages use, as text for graph_text.graph."""

SOFTMAX = """
    x: f32[4096, 1024]
    m[n] = max[k](x[n, k])
    e[n, k] = exp(x[n, k] - m[n])
    s[n] = sum[k](e[n, k])
    y[n, k] = e[n, k] / s[n]
    return y
"""
LOGSUMEXP = """
    x: f32[4096, 1024]
    m[n] = max[k](x[n, k])
    s[n] = sum[k](exp(x[n, k] - m[n]))
    y[n] = log(s[n]) + m[n]
    return y
"""
LAYER_NORM = """
    x: f32[4096, 1024]
    g: f32[1024]
    b: f32[1024]
    s[n] = sum[k](x[n, k])
    m[n] = s[n] / 1024.0
    v[n] = sum[k]((x[n, k] - m[n]) * (x[n, k] - m[n]))
    y[n, k] = (x[n, k] - m[n]) * rsqrt(v[n] / 1024.0 + 0.00001) * g[k] + b[k]
    return y
"""
ATTENTION = """
    q: f32[8, 512, 64]
    k: f32[8, 512, 64]
    v: f32[8, 512, 64]
    s[h, i, j] = sum[d](q[h, i, d] * k[h, j, d])
    c[h, i, j] = s[h, i, j] * 0.125
    m[h, i] = max[j](c[h, i, j])
    e[h, i, j] = exp(c[h, i, j] - m[h, i])
    z[h, i] = sum[j](e[h, i, j])
    p[h, i, j] = e[h, i, j] / z[h, i]
    o[h, i, d] = sum[j](p[h, i, j] * v[h, j, d])
    return o
"""
DENSE = """
    x: f32[512, 256]
    w: f32[256, 512]
    b: f32[512]
    t[n, m] = sum[k](x[n, k] * w[k, m])
    y[n, m] = relu(t[n, m] + b[m])
    return y
"""
RESIDUAL_NORM = """
    x: f32[512, 256]
    r: f32[512, 256]
    t[n, k] = x[n, k] + r[n, k]
    s[n] = sum[k](t[n, k])
    v[n] = sum[k]((t[n, k] - s[n]) * (t[n, k] - s[n]))
    y[n, k] = (t[n, k] - s[n]) * rsqrt(v[n])
    return y, t
"""
DISTANCES = """
    x: f32[4096, 16]
    c: f32[4096, 16]
    d[n, m] = sum[k]((x[n, k] - c[m, k]) * (x[n, k] - c[m, k]))
    a[n] = argmin[m](d[n, m])
    return a
"""
TWO_PRODUCTS = """
    x: f32[1024, 1024]
    w: f32[1024, 1024]
    u: f32[1024, 1024]
    t[n, m] = sum[k](x[n, k] * w[k, m])
    r[n, m] = relu(t[n, m])
    y[n, p] = sum[m](r[n, m] * u[m, p])
    return y
"""
