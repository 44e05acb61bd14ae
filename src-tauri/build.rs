//! Nothing for the servers. For the desktop app: builds its page with npm, and says which commands the page may call.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "desktop")]
    desktop::build();
}

#[cfg(feature = "desktop")]
mod desktop {
    use std::path::Path;
    use std::process::Command;

    use tauri_build::{AppManifest, Attributes};

    /// What the page may ask for; each is a function of `src/desktop/commands.rs`.
    const COMMANDS: &[&str] = &[
        "watch",
        "offer",
        "accept",
        "decline",
        "leave",
        "contribute",
        "pause",
        "resume",
        "switch_device",
        "save_settings",
        "confirm_download",
        "slices_bytes",
        "delete_slices",
        "remove_everything",
        "receipts",
        "open_wallet",
        "show_phrase",
        "verify_phrase",
        "restore_wallet",
        "new_wallet",
        "set_password",
        "unlock",
        "claim_room",
        "claim",
        "diagnose",
        "save_report",
        "start_at_login",
        "look_for_update",
        "install_update",
        "close_window",
        "stay",
        "quit",
    ];

    pub fn build() {
        page(Path::new("../ui"));
        if let Err(error) =
            tauri_build::try_build(Attributes::new().app_manifest(AppManifest::new().commands(COMMANDS)))
        {
            fail(&format!("{error:#}"));
        }
    }

    /// Builds `ui/dist` whenever a file of the page has changed.
    fn page(ui: &Path) {
        for watched in ["src", "index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.js"] {
            println!("cargo::rerun-if-changed={}", ui.join(watched).display());
        }
        if !ui.join("node_modules/.package-lock.json").exists() {
            npm(ui, &["ci", "--no-audit", "--no-fund"]);
        }
        npm(ui, &["run", "--silent", "build"]);
    }

    fn npm(ui: &Path, args: &[&str]) {
        let program = if cfg!(windows) { "npm.cmd" } else { "npm" };
        match Command::new(program).args(args).current_dir(ui).output() {
            Ok(output) if output.status.success() => {}
            Ok(output) => {
                let said = [output.stdout, output.stderr].concat();
                fail(&format!("npm {} in ui: {}", args.join(" "), String::from_utf8_lossy(&said)));
            }
            Err(error) => fail(&format!("the desktop app's page is built with npm (Node 18 or newer): {error}")),
        }
    }

    fn fail(message: &str) -> ! {
        eprintln!("{message}");
        std::process::exit(1);
    }
}
