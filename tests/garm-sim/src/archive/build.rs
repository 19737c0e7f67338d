//! Packs the layout into a tar.gz, and keeps large ones for the next time.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, EntryType, Header};

use super::layout::{self, Node};
use super::{ArchiveSpec, Built, EntryKind, ExtraEntry, sha256_hex};

/// The date of everything in an archive: the same spec gives the same bytes.
const MTIME: u64 = 1_790_000_000;
/// The ids in the real archive are those of its build machine, not of any runner user.
const OWNER: u64 = 1001;

/// Packs an archive, or finds it in the spec's cache.
pub(crate) fn build(spec: &ArchiveSpec) -> io::Result<Built> {
    let bytes = match &spec.cache {
        Some(folder) => cached(spec, folder)?,
        None => pack(spec, Vec::new())?,
    };
    Ok(Built {
        sha256: sha256_hex(&bytes),
        bytes: Bytes::from(bytes),
        version: spec.version.clone(),
    })
}

fn cached(spec: &ArchiveSpec, folder: &Path) -> io::Result<Vec<u8>> {
    fs::create_dir_all(folder)?;
    let mut key = spec.clone();
    key.cache = None;
    // The Listener is part of the key: a new one makes a new archive.
    let key = format!("{key:?} {}", sha256_hex(layout::FAKE_LISTENER));
    let path = folder.join(format!("runner-{}.tar.gz", &sha256_hex(key.as_bytes())[..16]));
    if let Ok(bytes) = fs::read(&path) {
        return Ok(bytes);
    }
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    pack(spec, io::BufWriter::new(file.as_file_mut()))?.flush()?;
    file.persist(&path)?;
    fs::read(&path)
}

fn pack<W: Write>(spec: &ArchiveSpec, out: W) -> io::Result<W> {
    let mut builder = Builder::new(GzEncoder::new(out, Compression::fast()));
    let top = spec.top_folder.as_deref().map(|folder| format!("{folder}/")).unwrap_or_default();
    layout::each(spec, &mut |path, node| {
        if spec.without.iter().any(|left_out| left_out == path) {
            return Ok(());
        }
        append(&mut builder, &format!("{top}{path}"), &node)
    })?;
    for entry in &spec.extra_entries {
        append_extra(&mut builder, entry)?;
    }
    builder.into_inner()?.finish()
}

fn header(mode: u32, kind: EntryType, size: usize) -> Header {
    let mut header = Header::new_gnu();
    header.set_mode(mode);
    header.set_uid(OWNER);
    header.set_gid(OWNER);
    header.set_mtime(MTIME);
    header.set_entry_type(kind);
    header.set_size(size as u64);
    header
}

fn append<W: Write>(builder: &mut Builder<W>, path: &str, node: &Node<'_>) -> io::Result<()> {
    match node {
        Node::Folder => {
            let mut header = header(0o755, EntryType::Directory, 0);
            builder.append_data(&mut header, format!("{path}/"), io::empty())
        }
        Node::File { mode, data } => {
            let mut header = header(*mode, EntryType::Regular, data.len());
            builder.append_data(&mut header, path, *data)
        }
        Node::Link(target) => {
            let mut header = header(0o777, EntryType::Symlink, 0);
            builder.append_link(&mut header, path, target)
        }
    }
}

/// Writes the header by hand: the builder would refuse what must be refused by others.
fn append_extra<W: Write>(builder: &mut Builder<W>, entry: &ExtraEntry) -> io::Result<()> {
    let nothing: &[u8] = &[];
    let (kind, data, link, device) = match &entry.kind {
        EntryKind::Raw(blocks) => return builder.get_mut().write_all(blocks),
        EntryKind::File(data) => (EntryType::Regular, data.as_slice(), "", None),
        EntryKind::Folder => (EntryType::Directory, nothing, "", None),
        EntryKind::Symlink(to) => (EntryType::Symlink, nothing, to.as_str(), None),
        EntryKind::Hardlink(to) => (EntryType::Link, nothing, to.as_str(), None),
        EntryKind::CharDevice(major, minor) => {
            (EntryType::Char, nothing, "", Some((*major, *minor)))
        }
        EntryKind::BlockDevice(major, minor) => {
            (EntryType::Block, nothing, "", Some((*major, *minor)))
        }
        EntryKind::Fifo => (EntryType::Fifo, nothing, "", None),
    };
    let mut header = header(entry.mode, kind, data.len());
    if let Some((major, minor)) = device {
        header.set_device_major(major)?;
        header.set_device_minor(minor)?;
    }
    let fields =
        header.as_gnu_mut().ok_or_else(|| io::Error::other("the header was made as a GNU one"))?;
    field(&mut fields.name, &entry.path)?;
    field(&mut fields.linkname, link)?;
    header.set_cksum();
    builder.append(&header, data)
}

fn field(field: &mut [u8; 100], text: &str) -> io::Result<()> {
    let room = field
        .get_mut(..text.len())
        .ok_or_else(|| io::Error::other(format!("longer than 100 bytes: {text}")))?;
    room.copy_from_slice(text.as_bytes());
    Ok(())
}
