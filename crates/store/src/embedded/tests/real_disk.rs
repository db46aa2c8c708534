//! A disk that is really full: a tiny file system in memory, which only root may mount.

use std::{path::Path, process::Command, time::Duration};

use redis::AsyncCommands;

use crate::{Error, Options, Store};

/// A file system of its own, taken away on drop.
struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    fn mount(size: &str) -> Result<Tmpfs, String> {
        let folder = tempfile::tempdir().unwrap();
        let made = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(folder.path())
            .output()
            .map_err(|error| format!("mount: {error}"))?;
        match made.status.success() {
            true => Ok(Tmpfs(folder)),
            false => Err(String::from_utf8_lossy(&made.stderr).trim().to_owned()),
        }
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // Lazily, so that a store that is still open after a failed test does not keep it.
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

#[tokio::test]
async fn a_disk_that_is_really_full_refuses_writes_and_recovers_by_itself() {
    let disk = match Tmpfs::mount("2m") {
        Ok(disk) => disk,
        Err(reason) => {
            eprintln!(
                "NOT TRIED ON A REAL FILE SYSTEM: mounting a tmpfs is not permitted here \
                 ({reason}). The disk in memory stands in for it."
            );
            super::a_full_disk_refuses_writes_before_they_change_anything_and_recovers();
            return;
        }
    };
    let filler = disk.path().join("filler");
    std::fs::write(&filler, vec![0; 1 << 20]).unwrap();
    let url = format!("embedded:{}", disk.path().join("store").display());
    let mut store = Store::open_with(&url, Options::default()).await.unwrap();
    let value = "x".repeat(1_000);
    let mut acked = 0;
    let refused = loop {
        match store.set::<_, _, ()>(format!("k{acked}"), &value).await {
            Ok(()) => acked += 1,
            Err(error) => break error,
        }
        assert!(acked < 10_000, "the disk never became full");
    };
    assert!(refused.to_string().contains("No space left on device"), "{refused}");
    assert!(matches!(Error::from(refused), Error::ReadOnly { .. }));
    assert!(acked > 100, "only {acked} writes fitted");
    assert!(!store.exists::<_, bool>(format!("k{acked}")).await.unwrap(), "it changed something");
    assert_eq!(store.get::<_, String>("k0").await.unwrap(), value, "reads go on");
    let health = store.health();
    assert!(!health.reachable && health.reason.unwrap().contains("No space left"));

    // Space is made: nobody tells the store.
    std::fs::remove_file(&filler).unwrap();
    let goes_on = async {
        while store.set::<_, _, ()>("after", 1).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), goes_on).await.unwrap();
    assert!(store.health().reachable);
    drop(store);
    let mut store = Store::open(&url).await.unwrap();
    for n in 0..acked {
        assert!(store.exists::<_, bool>(format!("k{n}")).await.unwrap(), "k{n} was acknowledged");
    }
    assert_eq!(store.get::<_, i64>("after").await.unwrap(), 1);
}
