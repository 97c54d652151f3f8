//! `skytether token`: tokens of people and programs.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use skytether::address::is_host;
use skytether_common::Error;
use skytether_flight::RemoteHost;
use skytether_transport::token::{FILE_NAME, check_grant, lifetime};
use skytether_transport::{Secret, TokenInfo, TokenStore};

use crate::common_args::{ClientArgs, ListFormat};
use crate::context::{Failure, print_line};
use crate::listing;
use crate::output::columns;

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token and print it. It is shown only now; the fleet keeps a hash of it.
    Create(TokenCreate),
    /// List the tokens: names, dates and grants.
    Ls(TokenLs),
    /// Take a token back. Calls with it fail from now on.
    Revoke(TokenRevoke),
}

// Where the tokens are kept.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("where").required(true).multiple(true).args(["fleet", "tokens"]))]
pub(crate) struct Place {
    /// The fleet: a directory, which a host may have open, or a host's address.
    #[arg(long, value_name = "DIR|URL", env = "SKYTETHER_FLEET")]
    fleet: Option<String>,
    /// The file of tokens of a host over served drives (`host serve --tokens`), or of a drive. It takes the place of
    /// --fleet.
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TokenCreate {
    /// The name of its holder: letters, digits, '-', '_', '.' and '@'. Clients that log in use it as their user name.
    name: String,
    #[command(flatten)]
    place: Place,
    /// What its holder may do: read:DOMAIN, write:DOMAIN or admin; may be given several times. Grants are kept and
    /// listed; this version does not enforce them yet.
    #[arg(long, value_name = "GRANT", value_parser = |text: &str| check_grant(text).map(|()| text.to_owned()).map_err(|e| e.message().to_owned()))]
    grant: Vec<String>,
    /// How long it is valid: 90m, 12h, 30d, 52w (default: until it is revoked).
    #[arg(long, value_name = "TIME", value_parser = |text: &str| lifetime(text).map_err(|e| e.message().to_owned()))]
    expires: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct TokenLs {
    #[command(flatten)]
    place: Place,
    /// How to print it.
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
}

#[derive(Debug, Args)]
pub(crate) struct TokenRevoke {
    /// The token's name.
    name: String,
    #[command(flatten)]
    place: Place,
}

/// The tokens of a fleet: in a file, or behind a host.
enum Tokens {
    File(TokenStore),
    Host(RemoteHost),
}

impl Place {
    async fn open(&self) -> Result<Tokens, Failure> {
        if let Some(file) = &self.tokens {
            return Ok(Tokens::File(TokenStore::new(file)));
        }
        let fleet = self.fleet.as_deref().unwrap_or_default();
        if is_host(fleet) {
            return Ok(Tokens::Host(RemoteHost::connect_with(fleet, &self.client.credentials()).await?));
        }
        let dir = Path::new(fleet);
        if !dir.join("fleet.json").exists() {
            return Err(Failure::Work(Error::not_found(format!("{}: there is no fleet; make one with `skytether init`", dir.display()))));
        }
        Ok(Tokens::File(TokenStore::new(dir.join(FILE_NAME))))
    }
}

/// Carries out a command about tokens.
pub(crate) async fn run(command: TokenCommand) -> Result<(), Failure> {
    match command {
        TokenCommand::Create(args) => create(args).await,
        TokenCommand::Ls(args) => list(args).await,
        TokenCommand::Revoke(args) => {
            match args.place.open().await? {
                Tokens::File(store) => store.revoke(&args.name)?,
                Tokens::Host(host) => host.revoke_token(&args.name).await?,
            }
            eprintln!("revoked the token {}", args.name);
            Ok(())
        }
    }
}

async fn create(args: TokenCreate) -> Result<(), Failure> {
    let token: Secret = match args.place.open().await? {
        Tokens::File(store) => store.create(&args.name, &args.grant, args.expires)?,
        Tokens::Host(host) => host.create_token(&args.name, &args.grant, args.expires).await?,
    };
    print_line(token.expose())?;
    Ok(())
}

async fn list(args: TokenLs) -> Result<(), Failure> {
    let tokens = match args.place.open().await? {
        Tokens::File(store) => store.list()?,
        Tokens::Host(host) => host.tokens().await?,
    };
    print_line(
        match args.format {
            ListFormat::Json => listing::json(&tokens)?,
            ListFormat::Table if tokens.is_empty() => "no tokens".to_owned(),
            ListFormat::Table => table(&tokens),
        }
        .trim_end(),
    )?;
    Ok(())
}

fn table(tokens: &[TokenInfo]) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let rows: Vec<Vec<String>> = tokens
        .iter()
        .map(|token| {
            let expires = match token.expires {
                None => "never".to_owned(),
                Some(_) if token.is_expired() => "expired".to_owned(),
                Some(at) => format!("in {}", span(at.saturating_sub(now))),
            };
            vec![token.name.clone(), format!("{} ago", span(now.saturating_sub(token.created))), expires, token.grants.join(", ")]
        })
        .collect();
    columns(&["name", "made", "expires", "grants"], &[false, false, false, false], &rows)
}

/// A span of time in its largest unit.
fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}
