//! Host names, in a binary that has the C library linked in.

/// Makes name resolution use `/etc/hosts` and DNS alone.
///
/// A static glibc would otherwise load the modules that `/etc/nsswitch.conf` names, which were built for
/// the host's own glibc and may crash another one. musl, which releases are built for, has no modules.
#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
#[expect(unsafe_code, reason = "a C function without a wrapper")]
pub fn without_modules() {
    unsafe extern "C" {
        /// nss.h of glibc.
        fn __nss_configure_lookup(
            database: *const std::ffi::c_char,
            services: *const std::ffi::c_char,
        ) -> std::ffi::c_int;
    }
    // SAFETY: both are strings with an end, glibc copies what it keeps, and no other thread exists yet.
    unsafe { __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr()) };
}

/// Nothing to do: the C library is the host's own, or has no modules.
#[cfg(not(all(target_env = "gnu", target_feature = "crt-static")))]
pub fn without_modules() {}
