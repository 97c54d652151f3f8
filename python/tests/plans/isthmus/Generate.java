import io.substrait.isthmus.SqlToSubstrait;
import io.substrait.isthmus.sql.SubstraitCreateStatementParser;
import io.substrait.plan.PlanProtoConverter;
import java.nio.file.Files;
import java.nio.file.Path;

/** SQL files to Substrait plans: Generate SCHEMA.sql OUTPUT-DIRECTORY QUERY.sql... */
class Generate {
  public static void main(String[] arguments) throws Exception {
    var catalog = SubstraitCreateStatementParser.processCreateStatementsToCatalog(Files.readString(Path.of(arguments[0])));
    for (int n = 2; n < arguments.length; n++) {
      var file = Path.of(arguments[n]);
      // The scale factor that the tests use; VALUE is a word of Calcite's own.
      var sql = Files.readString(file).replace("{scale}", "0.01").replaceAll("\\bvalue\\b", "\"value\"");
      var plan = new PlanProtoConverter().toProto(new SqlToSubstrait().convert(sql, catalog));
      Files.write(Path.of(arguments[1], file.getFileName().toString().replace(".sql", ".plan")), plan.toByteArray());
    }
  }
}
