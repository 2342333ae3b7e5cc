//! Global options and their sources: the command line, the environment, a file, defaults.

use std::path::{Path, PathBuf};
use std::{env, fmt, fs, io};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args};
#[cfg(feature = "tls")]
use millstream::TlsConfig;
use millstream::{Builder, Credentials, Millstream, Namespace, PasswordFile};
use serde::Deserialize;

use crate::output::Output;

/// The default URL.
const URL: &str = "redis://127.0.0.1:6379";
/// Names of the option with the user, the option with the file of the password, and the variable with the password.
type Names = [&'static str; 3];
const SERVER: Names = ["--user", "--password-file", "MILLSTREAM_PASSWORD"];
const SENTINEL: Names = ["--sentinel-user", "--sentinel-password-file", "MILLSTREAM_SENTINEL_PASSWORD"];

/// Options of all commands.
#[derive(Args, Clone)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// URL of the servers: `redis://[user:password@]host[:port][/db]`, `rediss://` for TLS, `redis+unix:///path`,
    /// `redis+cluster://host[,host]`, or `redis+sentinel://host[,host]/service`. Default: `redis://127.0.0.1:6379`
    #[arg(long, short, global = true, value_name = "URL", env = "MILLSTREAM_URL", hide_env_values = true)]
    url: Option<String>,
    /// User to log in as. Default: that of the URL, or else the server's default user
    #[arg(long, global = true, value_name = "NAME", env = "MILLSTREAM_USER")]
    user: Option<String>,
    /// File with the password, or else the variable `MILLSTREAM_PASSWORD`: neither is seen in a list of processes, as the
    /// URL is. Default: none
    #[arg(long, global = true, value_name = "FILE", env = "MILLSTREAM_PASSWORD_FILE", value_parser = file_path())]
    password_file: Option<PathBuf>,
    /// User to log in as at Sentinels that ask for a password. Default: their default user
    #[arg(long, global = true, value_name = "NAME", env = "MILLSTREAM_SENTINEL_USER")]
    sentinel_user: Option<String>,
    /// File with the password of the Sentinels, or else the variable `MILLSTREAM_SENTINEL_PASSWORD`. Default: none
    #[arg(long, global = true, value_name = "FILE", env = "MILLSTREAM_SENTINEL_PASSWORD_FILE", value_parser = file_path())]
    sentinel_password_file: Option<PathBuf>,
    /// Prefix of all keys, the same as in the programs that use the queue. Default, and if it is empty: none
    #[arg(long, global = true, value_name = "NAME", env = "MILLSTREAM_NAMESPACE")]
    namespace: Option<String>,
    /// With TLS: file with the certificates (PEM) of the authorities to trust. Default: those of the system
    #[cfg(feature = "tls")]
    #[arg(long, global = true, value_name = "FILE", env = "MILLSTREAM_TLS_CA", value_parser = file_path())]
    tls_ca: Option<PathBuf>,
    /// With TLS: file with the certificate (PEM) to present, and its chain. Default: none
    #[cfg(feature = "tls")]
    #[arg(long, global = true, value_name = "FILE", env = "MILLSTREAM_TLS_CERT", value_parser = file_path())]
    tls_cert: Option<PathBuf>,
    /// File with the private key (PEM) of `--tls-cert`
    #[cfg(feature = "tls")]
    #[arg(long, global = true, value_name = "FILE", env = "MILLSTREAM_TLS_KEY", value_parser = file_path())]
    tls_key: Option<PathBuf>,
    /// With TLS: name that the servers' certificates must have. Default: the host of the address
    #[cfg(feature = "tls")]
    #[arg(long, global = true, value_name = "NAME", env = "MILLSTREAM_TLS_SERVER_NAME")]
    tls_server_name: Option<String>,
    #[cfg_attr(
        feature = "tls",
        doc = "Settings file (TOML) with `url`, `user`, `password-file`, `sentinel-user`, `sentinel-password-file`, `namespace`,\n`tls-ca`, `tls-cert`, `tls-key` and `tls-server-name`"
    )]
    #[cfg_attr(
        not(feature = "tls"),
        doc = "Settings file (TOML) with `url`, `user`, `password-file`, `sentinel-user`, `sentinel-password-file` and\n`namespace`. `tls-ca`, `tls-cert`, `tls-key` and `tls-server-name` are for a command that was built with TLS, and are not used"
    )]
    #[arg(long, global = true, value_name = "FILE", env = "MILLSTREAM_CONFIG", value_parser = file_path())]
    config: Option<PathBuf>,
    /// Prints JSON: each line of stdout is an envelope with the data, or with the error
    #[arg(long, global = true)]
    json: bool,
    /// Answers all prompts with yes
    #[arg(long, short, global = true)]
    pub(crate) yes: bool,
    /// Path of the called command.
    #[arg(skip)]
    command: &'static str,
}

/// The settings in a file. It may be shared with a command that was built with TLS.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    url: Option<String>,
    user: Option<String>,
    #[serde(rename = "password-file")]
    password_file: Option<PathBuf>,
    #[serde(rename = "sentinel-user")]
    sentinel_user: Option<String>,
    #[serde(rename = "sentinel-password-file")]
    sentinel_password_file: Option<PathBuf>,
    namespace: Option<String>,
    #[serde(rename = "tls-ca")]
    tls_ca: Option<PathBuf>,
    #[serde(rename = "tls-cert")]
    tls_cert: Option<PathBuf>,
    #[serde(rename = "tls-key")]
    tls_key: Option<PathBuf>,
    #[serde(rename = "tls-server-name")]
    tls_server_name: Option<String>,
}

/// Returns the path of the called command: `topic list`. Called once or twice in a process, so that it may leak.
pub(crate) fn path(matches: &ArgMatches) -> &'static str {
    let mut names = Vec::new();
    let mut leaf = matches;
    while let Some((name, beneath)) = leaf.subcommand() {
        names.push(name);
        leaf = beneath;
    }
    names.join(" ").leak()
}

/// Accepts an empty path too, which stands for no file.
fn file_path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

impl Global {
    /// Returns the output settings of the called command.
    pub(crate) fn output(&self) -> Output {
        Output::new(self.json, self.command)
    }

    /// Determines the sources of values, and the called command. An empty variable counts as not set, since files of settings often name all
    /// variables; an empty option is an empty value.
    pub(crate) fn settle(&mut self, matches: &ArgMatches) {
        self.command = path(matches);
        let drops = |id, value: &mut Option<String>| {
            if matches.value_source(id) == Some(ValueSource::EnvVariable) {
                value.take_if(|it| it.is_empty());
            }
        };
        drops("url", &mut self.url);
        drops("user", &mut self.user);
        drops("sentinel_user", &mut self.sentinel_user);
        drops("namespace", &mut self.namespace);
        #[cfg(feature = "tls")]
        drops("tls_server_name", &mut self.tls_server_name);
        for (id, path) in [
            ("password_file", &mut self.password_file),
            ("sentinel_password_file", &mut self.sentinel_password_file),
            #[cfg(feature = "tls")]
            ("tls_ca", &mut self.tls_ca),
            #[cfg(feature = "tls")]
            ("tls_cert", &mut self.tls_cert),
            #[cfg(feature = "tls")]
            ("tls_key", &mut self.tls_key),
        ] {
            if matches.value_source(id) == Some(ValueSource::EnvVariable) {
                path.take_if(|path| path.as_os_str().is_empty());
            }
        }
    }

    /// Returns the builder of the connection, for commands with further settings.
    ///
    /// # Errors
    /// A settings file that was named and does not exist, or that is invalid; an invalid URL.
    pub(crate) fn builder(&self) -> Result<Builder> {
        let settings = self.settings()?;
        let url = self.url.clone().or(settings.url).unwrap_or_else(|| URL.to_owned());
        #[cfg(feature = "tls")]
        let builder = {
            let files = [settings.tls_ca, settings.tls_cert, settings.tls_key];
            let tls = self.tls(files, settings.tls_server_name)?;
            tls.into_iter().fold(Millstream::at(url), Builder::tls)
        };
        #[cfg(not(feature = "tls"))]
        let builder = {
            // Not needed without TLS, and a URL that asks for it is refused for that reason.
            let _ = (settings.tls_ca, settings.tls_cert, settings.tls_key, settings.tls_server_name);
            Millstream::at(url)
        };
        let user = self.user.clone().or(settings.user);
        let file = self.password_file.clone().or(settings.password_file);
        // Whether the URL has a password too is checked later.
        let builder = match credentials(user, file, &SERVER)? {
            Some(Secret::File(file)) => builder.credentials(file),
            Some(Secret::Known(known)) => builder.credentials(known),
            None => builder,
        };
        let user = self.sentinel_user.clone().or(settings.sentinel_user);
        let file = self.sentinel_password_file.clone().or(settings.sentinel_password_file);
        let builder = match credentials(user, file, &SENTINEL)? {
            Some(Secret::File(file)) => builder.sentinel_credentials(file),
            Some(Secret::Known(known)) => builder.sentinel_credentials(known),
            None => builder,
        };
        Ok(self.named(settings.namespace).into_iter().fold(builder, Builder::namespace))
    }

    /// Returns the namespace, for commands that need no server.
    ///
    /// # Errors
    /// Those of the settings file; an invalid name.
    pub(crate) fn namespace(&self) -> Result<Option<Namespace>> {
        Ok(self.named(self.settings()?.namespace).map(Namespace::new).transpose()?)
    }

    fn named(&self, in_file: Option<String>) -> Option<String> {
        // An empty namespace means none, whatever the file contains.
        self.namespace.clone().or(in_file).filter(|namespace| !namespace.is_empty())
    }

    /// Reads the certificates. `None` if neither they nor the servers are named.
    #[cfg(feature = "tls")]
    fn tls(&self, in_file: [Option<PathBuf>; 3], name_in_file: Option<String>) -> Result<Option<TlsConfig>> {
        let named = [&self.tls_ca, &self.tls_cert, &self.tls_key].into_iter().zip(in_file);
        let read = |(option, in_file): (&Option<PathBuf>, Option<PathBuf>)| {
            let path = option.clone().or(in_file).filter(|path| !path.as_os_str().is_empty());
            path.map(|path| fs::read(&path).with_context(|| format!("cannot read {}", path.display())))
                .transpose()
        };
        let files = named.map(read).collect::<Result<Vec<_>>>()?;
        let mut files = files.into_iter();
        let [ca, cert, key] = std::array::from_fn(|_| files.next().flatten());
        let tls = ca.into_iter().fold(TlsConfig::new(), TlsConfig::with_ca);
        let name = self.tls_server_name.clone().or(name_in_file).filter(|name| !name.is_empty());
        let tls = name.into_iter().fold(tls, TlsConfig::with_server_name);
        match (cert, key) {
            (Some(cert), Some(key)) => Ok(Some(tls.with_client(cert, key))),
            (None, None) => Ok((tls.ca.is_some() || tls.server_name.is_some()).then_some(tls)),
            _ => bail!("--tls-cert and --tls-key go together"),
        }
    }

    fn settings(&self) -> Result<Settings> {
        let named = self.config.clone().filter(|path| !path.as_os_str().is_empty());
        let must = named.is_some();
        let Some(path) = named.or_else(default_path) else { return Ok(Settings::default()) };
        match fs::read_to_string(&path) {
            Ok(text) => read(&text, &path),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !must => Ok(Settings::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }
}

/// Source of a password.
enum Secret {
    File(PasswordFile),
    Known(Credentials),
}

/// Returns the source of user and password, if one is named.
fn credentials(user: Option<String>, file: Option<PathBuf>, names: &Names) -> Result<Option<Secret>> {
    let [user_option, file_option, variable] = names;
    let user = user.filter(|user| !user.is_empty());
    let file = file.filter(|path| !path.as_os_str().is_empty()).map(PasswordFile::new);
    let password = env::var(variable).ok().filter(|password| !password.is_empty());
    Ok(match (file, password, user) {
        (Some(file), _, user) => Some(Secret::File(user.into_iter().fold(file, PasswordFile::user))),
        (None, Some(password), Some(user)) => Some(Secret::Known(Credentials::new(user, password))),
        (None, Some(password), None) => Some(Secret::Known(Credentials::password(password))),
        (None, None, Some(_)) => bail!("{user_option} needs a password: {file_option}, or {variable}"),
        (None, None, None) => None,
    })
}

fn default_path() -> Option<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
    Some(folder.join("millstream").join("config.toml"))
}

/// Parses a settings file. The parser's own error shows the line, which may contain a password; only the kind of
/// error and its position are reported.
fn read(text: &str, path: &Path) -> Result<Settings> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        anyhow!("{}:{line}: {}", path.display(), error.message())
    })
}

/// Omits the URL, as it may contain a password.
impl fmt::Debug for Global {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Global").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> String {
        read(text, Path::new("f.toml")).expect_err(text).to_string()
    }

    #[test]
    fn a_file_sets_what_it_names() {
        let read =
            read("# ours\nurl = \"redis://a\"\nnamespace = \"shop\"\n", Path::new("f")).expect("settings");
        assert_eq!(
            read,
            Settings { url: Some("redis://a".into()), namespace: Some("shop".into()), ..Settings::default() }
        );
    }

    /// The command line counts before the file, and an empty name is none.
    #[cfg(feature = "tls")]
    #[test]
    fn the_servers_can_be_named_on_the_command_line_and_in_the_file() {
        use clap::{Command, FromArgMatches};

        let named = |args: &[&str], in_file: Option<&str>| {
            let command = Global::augment_args(Command::new("millstream"));
            let matches = command.try_get_matches_from(["millstream"].iter().chain(args)).expect("arguments");
            let global = Global::from_arg_matches(&matches).expect("options");
            let tls = global.tls([None, None, None], in_file.map(str::to_owned)).expect("no files");
            tls.and_then(|tls| tls.server_name)
        };
        assert_eq!(named(&[], None), None);
        assert_eq!(named(&[], Some("a.internal")).as_deref(), Some("a.internal"));
        let both = named(&["--tls-server-name", "b.internal"], Some("a.internal"));
        assert_eq!(both.as_deref(), Some("b.internal"));
        assert_eq!(named(&["--tls-server-name", ""], Some("a.internal")), None);
        let read = read("tls-server-name = \"a.internal\"", Path::new("f")).expect("settings");
        assert_eq!(read.tls_server_name.as_deref(), Some("a.internal"));
    }

    /// Whether or not the command was built with TLS.
    #[test]
    fn a_file_may_have_the_settings_of_tls() {
        let text =
            "tls-ca = \"ca.pem\"\ntls-cert = \"c.pem\"\ntls-key = \"c.key\"\ntls-server-name = \"a\"\n";
        let read = read(text, Path::new("f")).expect("settings");
        assert_eq!(read.tls_ca, Some("ca.pem".into()));
        assert_eq!(read.tls_server_name.as_deref(), Some("a"));
    }

    #[test]
    fn the_help_names_only_settings_that_are_used() {
        let mut command = Global::augment_args(clap::Command::new("millstream"));
        let help = command.render_long_help().to_string();
        assert_eq!(help.contains("--tls-ca"), cfg!(feature = "tls"));
        assert_eq!(help.contains("are not used"), !cfg!(feature = "tls"));
        assert!(help.contains("`password-file`"), "{help}");
    }

    #[test]
    fn sentinels_have_secrets_of_their_own() {
        let text = "sentinel-user = \"ann\"\nsentinel-password-file = \"/run/secrets/sentinel\"\n";
        let read = read(text, Path::new("f")).expect("settings");
        assert_eq!(read.sentinel_user.as_deref(), Some("ann"));
        let none = |user: Option<&str>| credentials(user.map(str::to_owned), None, &SENTINEL);
        assert!(none(Some("")).expect("nothing is named").is_none());
        let alone = none(Some("ann")).err().expect("no password").to_string();
        let cure =
            "--sentinel-user needs a password: --sentinel-password-file, or MILLSTREAM_SENTINEL_PASSWORD";
        assert_eq!(alone, cure);
        let file = credentials(read.sentinel_user, read.sentinel_password_file, &SENTINEL);
        assert!(matches!(file, Ok(Some(Secret::File(_)))));
    }

    #[test]
    fn what_is_wrong_with_a_file_is_told_with_its_line_and_without_a_password() {
        let unknown = wrong("namespace = \"shop\"\nulr = \"redis://u:hunter2@h\"");
        assert!(unknown.starts_with("f.toml:2: unknown field `ulr`"), "{unknown}");
        for text in [
            "url = \"redis://u:hunter2@h\" x",
            "url = [\"redis://u:hunter2@h\"]",
            "url = redis://u:hunter2@h",
        ] {
            let said = wrong(text);
            assert!(said.starts_with("f.toml:1: ") && !said.contains("hunter2"), "{said}");
        }
    }
}
