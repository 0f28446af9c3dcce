//! Has the linker pack the program's relative relocations: 75,000 of them are 1.8 MB to read at every start otherwise.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
}
