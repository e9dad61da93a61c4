//! Damaged images, read by a real kernel and by us.
//!
//! Where the two differ, ours must have refused, or have read what the image held before it was damaged. Anything else is
//! a fault: bytes that nobody wrote, under a name that somebody trusts.

mod bases;
mod damage;
mod found;
mod guest;
mod judge;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use postread_tests::{KernelRun, Random, Uml, kernel_oracle, seed};

use bases::{Base, bases, load};
use damage::Damage;
use found::{Found, by_us};
use judge::{Tally, judge};

/// Damaged images; `POSTREAD_MUTATIONS` asks for another number.
fn images() -> usize {
    let default = if Uml::available() { 1000 } else { 100 };
    std::env::var("POSTREAD_MUTATIONS").ok().map_or(default, |count| count.parse().expect("a number"))
}

/// Crashes and hangs of the kernel after which the run goes on, each without the image that caused it.
const CRASHES: usize = 8;

#[test]
fn damaged_images_read_as_the_kernel_reads_them() {
    let seed = seed();
    let Some(bases) = bases() else { return };
    let mut random = Random::new(seed);
    let whole = (0..bases.len()).map(|base| Damage { base, writes: Vec::new(), one_field: true });
    let damaged: Vec<Damage> = whole.chain((0..images()).map(|_| Damage::random(&mut random, &bases))).collect();
    let Some(kernel) = ask_the_kernel(&bases, &damaged) else { return };

    let (mut tally, mut faults, mut mounted) = (Tally::default(), Vec::new(), 0);
    for (i, damage) in damaged.iter().enumerate() {
        let Some(theirs) = kernel.get(&i) else { continue };
        let (base, original) = (&bases[damage.base], &kernel[&damage.base]);
        let ours = load(Arc::new(damage.apply(base))).map_or_else(|_| Found::default(), |fs| by_us(&fs));
        if damage.writes.is_empty() {
            assert!(
                ours == *theirs,
                "{}, not damaged:\nours\n{}\nkernel\n{}",
                base.name,
                ours.to_text(),
                theirs.to_text()
            );
            continue;
        }
        mounted += usize::from(!theirs.0.is_empty());
        let wrong = judge(&ours, theirs, original, damage.one_field, &mut tally);
        if !wrong.is_empty() {
            let first: Vec<_> = wrong.iter().take(4).map(String::as_str).collect();
            let what = damage.describe(base);
            faults.push(format!("image {i} ({}), {what}:\n  {}", base.name, first.join("\n  ")));
        }
    }
    eprintln!("{} images, {mounted} of them mounted; {tally:?}", kernel.len());
    assert!(faults.is_empty(), "POSTREAD_SEED={seed}: {} faults\n{}", faults.len(), faults.join("\n"));
    // Else nothing was compared.
    assert!(mounted > damaged.len() / 2 && tally.equal > 100 * mounted, "{mounted} {tally:?}");
    assert!(tally.refused < tally.equal / 10, "{tally:?}");
}

/// What the kernel finds in each image. Images that crash it are missing.
fn ask_the_kernel(bases: &[Base], damaged: &[Damage]) -> Option<BTreeMap<usize, Found>> {
    let mut found = BTreeMap::new();
    let (mut crashed, mut suspect) = (BTreeSet::new(), None);
    loop {
        let open: Vec<usize> = (0..damaged.len()).filter(|i| !found.contains_key(i) && !crashed.contains(i)).collect();
        if open.is_empty() {
            break;
        }
        let run = start(bases, damaged, &open)?;
        let text = fs::read_to_string(run.dir().join("found")).unwrap_or_default();
        let complete = run.status == Some(0);
        let mut parts = text.split("\n= ").peekable();
        while let Some(part) = parts.next() {
            // The last one may be cut off.
            if parts.peek().is_none() && !complete {
                break;
            }
            let (head, body) = part.split_once('\n').unwrap_or((part, ""));
            let number = head.trim_start_matches("= ").split(' ').next().and_then(|number| number.parse().ok());
            found.extend(number.map(|number: usize| (number, Found::parse(body))));
        }
        if complete {
            continue;
        }
        let last = run.console.lines().rev().find_map(|line| line.trim().strip_prefix("image ")?.parse().ok());
        let last: usize = last.unwrap_or_else(|| panic!("the guest: {:?}\n{}\n{}", run.status, run.log, run.console));
        assert!(run.status.is_none(), "the guest at image {last}: {:?}\n{}", run.status, run.log);
        // On a slow machine the time may just be over: an image is to blame if it is the first one too.
        if run.console.lines().filter(|line| line.starts_with("image ")).count() > 1 && suspect != Some(last) {
            suspect = Some(last);
            continue;
        }
        eprintln!("the kernel crashed or hung at image {last}: {}", damaged[last].describe(&bases[damaged[last].base]));
        crashed.insert(last);
        assert!(crashed.len() <= CRASHES, "the kernel crashes too often: {crashed:?}");
    }
    Some(found)
}

/// Runs the guest over some of the images.
fn start(bases: &[Base], damaged: &[Damage], numbers: &[usize]) -> Option<KernelRun> {
    let dir = tempfile::tempdir().unwrap();
    let mut files = vec![("test".to_owned(), std::env::current_exe().unwrap())];
    for (i, base) in bases.iter().enumerate() {
        let file = dir.path().join(format!("base{i}"));
        fs::write(&file, &base.bytes).unwrap();
        files.push((format!("base{i}"), file));
    }
    let mut list = String::new();
    for &i in numbers {
        let writes = damaged[i].writes.iter().map(|(at, value)| format!(" {at}:{}", hex::encode(value)));
        list += &format!("{i} {}{}\n", damaged[i].base, writes.collect::<String>());
    }
    fs::write(dir.path().join("damage"), list).unwrap();
    files.push(("damage".to_owned(), dir.path().join("damage")));
    if Uml::available() {
        let mut uml = Uml::new()?.timeout(Duration::from_secs(100));
        for (name, file) in &files {
            uml = uml.file(name, file);
        }
        return Some(uml.run(guest::SCRIPT));
    }
    let files: Vec<(&str, &Path)> = files.iter().map(|(name, file)| (name.as_str(), file.as_path())).collect();
    kernel_oracle(guest::SCRIPT, &files)
}
