//! The .rpm, by the crate of that name.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rpm::{BuildConfig, CompressionType, Dependency, FileOptions, PackageBuilder};

use super::{Build, File, FileKind};
use crate::shell;

const RELEASE: &str = "1";

pub(super) fn write(dir: &Path, build: &Build, files: &[File]) -> Result<PathBuf> {
    let (version, arch) = (&build.version, &build.arch);
    let source = shell::root().join("packaging/rpm");
    let script = |name: &str| {
        fs::read_to_string(source.join(name)).with_context(|| format!("read packaging/rpm/{name}"))
    };
    let summary = "Boots, announces and supervises a CI runner for GARM";
    let mut package = PackageBuilder::new("garm-bootstrap", version, "Apache-2.0", arch, summary);
    let config = BuildConfig::default().compression(CompressionType::Gzip).source_date(build.time);
    package
        .using_config(config)
        .release(RELEASE)
        .url("https://github.com/cloudbase/garm-bootstrap")
        .description(
            "One static program that turns a fresh VM or container into a CI runner for GARM. The \
             unit is neither enabled nor started by the installation.",
        )
        .build_host("localhost")
        .recommends(Dependency::any("ca-certificates"))
        .post_install_script(script("post.sh")?)
        .pre_uninstall_script(script("preun.sh")?)
        .post_uninstall_script(script("postun.sh")?);
    for file in files {
        let mode = u16::try_from(file.mode).context("a mode has twelve bits")?;
        let options = FileOptions::new(format!("/{}", file.path)).permissions(mode);
        let options = match file.kind {
            FileKind::Plain => options,
            FileKind::Config => options.config().noreplace(),
            FileKind::Doc => options.doc(),
            FileKind::License => options.license(),
        };
        package.with_file_contents(file.contents.clone(), options)?;
    }
    let path = dir.join(format!("garm-bootstrap-{version}-{RELEASE}.{arch}.rpm"));
    package.build()?.write_file(&path).with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}
